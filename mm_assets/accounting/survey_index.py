"""Index of surveys and of notes on published outputs: what the integrity gate asks of all shards in each run.

ledger/index/surveys/      types of the columns, and hashes of the sample ids, of each survey
ledger/index/published/    schema of each published output
ledger/index/sample_ids/   hashes of the sample ids of each published output

A run opens the files of its own shards, and those that are new since the last run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

import numpy as np

from mm_assets.accounting import survey_codec
from mm_assets.accounting.contract import Published
from mm_assets.accounting.file_index import FileFacts, FileIndex, hashes_of
from mm_assets.accounting.shard_columns import ShardColumns
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import join

T = TypeVar("T")

FOLDERS = ("surveys", "published", "sample_ids")

_AT_ONCE = 2000  # files whose facts are in memory before they are written
_NO_HASHES = np.empty(0, np.uint64)


class SurveyIndex:
    """Index of what ``store`` has, beside it; it is brought up to date when asked."""

    def __init__(self, store: SurveyStore) -> None:
        self._store = store
        folder = join(store.root, "ledger", "index")
        self._surveys, self._published, self._ids = (
            FileIndex(join(folder, name), store.options) for name in FOLDERS
        )

    def columns(self, partitions: Iterable[str]) -> dict[str, ShardColumns]:
        """Return the columns of each surveyed shard among ``partitions``, for `SchemaContract.derive`.

        Integers are told only as far as they decide about types. Shards of the same columns share an object.
        """
        texts = self._texts(self._surveys, self._store.survey_stamps(), partitions, self._facts_of_surveys)
        return _parsed(texts, survey_codec.columns_from_text)

    def published(self, landed: Iterable[str]) -> dict[str, Published]:
        """Return what the outputs of ``landed`` (published) partitions were made with, as `columns` does."""
        landed = set(landed)
        texts = self._texts(self._published, self._store.note_stamps(), landed, self._facts_of_notes)
        found = _parsed(texts, survey_codec.published_from_text)
        return found | dict(self._store.read_outputs(landed - found.keys()))

    def published_sharing(self, landed: Collection[str], sample_ids: Iterable[str]) -> set[str]:
        """Return the ``landed`` partitions whose outputs may have one of these ids.

        Those that have one are among them, and so are those without notes on their ids.
        """
        stamps = self._store.id_stamps()
        noted = self._texts(self._ids, stamps, landed, self._facts_of_ids).keys()
        return _sharing(self._ids, stamps, noted, sample_ids).union(set(landed) - noted)

    def surveys_sharing(self, partitions: Iterable[str], sample_ids: Iterable[str]) -> set[str]:
        """Return the partitions whose surveys may have one of these ids.

        Those that have one are among them.
        """
        stamps = self._store.survey_stamps()
        surveyed = self._texts(self._surveys, stamps, partitions, self._facts_of_surveys).keys()
        return _sharing(self._surveys, stamps, surveyed, sample_ids)

    def _texts(
        self,
        index: FileIndex,
        stamps: Mapping[str, str],
        partitions: Iterable[str],
        facts_of: Callable[[Collection[str]], Iterable[tuple[str, FileFacts]]],
    ) -> dict[str, str]:
        """Return the indexed texts of the partitions that have a readable file; index those that are new."""
        names = {partition: partition_filename(partition) for partition in partitions}
        indexed = index.texts(stamps)
        texts = {partition: indexed[name] for partition, name in names.items() if name in indexed}
        missing = iter([key for key, name in names.items() if name in stamps and name not in indexed])
        while some := list(islice(missing, _AT_ONCE)):
            facts = dict(facts_of(some))
            index.add({names[key]: found for key, found in facts.items()}, stamps)
            texts |= {key: found.text for key, found in facts.items()}
        return texts

    def _facts_of_surveys(self, partitions: Collection[str]) -> Iterator[tuple[str, FileFacts]]:
        hashes = {key: hashes_of(ids.to_pylist()) for key, ids in self._store.sample_ids(partitions)}
        for key, columns in self._store.columns(hashes).items():
            yield key, FileFacts(survey_codec.columns_to_text(columns), hashes[key])

    def _facts_of_notes(self, partitions: Collection[str]) -> Iterator[tuple[str, FileFacts]]:
        for key, published in self._store.read_notes(partitions):
            yield key, FileFacts(survey_codec.published_to_text(published), _NO_HASHES)

    def _facts_of_ids(self, partitions: Collection[str]) -> Iterator[tuple[str, FileFacts]]:
        for key, ids in self._store.read_noted_ids(partitions):
            yield key, FileFacts("", hashes_of(ids.to_pylist()))


def _sharing(
    index: FileIndex, stamps: Mapping[str, str], partitions: Iterable[str], sample_ids: Iterable[str]
) -> set[str]:
    names = {partition_filename(partition): partition for partition in partitions}
    found = index.sharing({name: stamps[name] for name in names}, hashes_of(sample_ids))
    return {names[name] for name in found}


def _parsed(texts: Mapping[str, str], parse: Callable[[str], T]) -> dict[str, T]:
    """Return each text parsed; equal ones are parsed once."""
    parsed = {text: parse(text) for text in set(texts.values())}
    return {partition: parsed[text] for partition, text in texts.items()}
