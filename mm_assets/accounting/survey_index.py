"""Index of surveys and of notes on published outputs: what the integrity gate asks of all shards in each run.

ledger/index/surveys/      types of the columns, and hashes of the sample ids, of each survey
ledger/index/published/    schema of each published output
ledger/index/sample_ids/   hashes of the sample ids of each published output

A run opens the files of its own shards, and those that are new since the last run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mm_assets.accounting import survey_codec
from mm_assets.accounting.contract import Published
from mm_assets.accounting.records import index_folder
from mm_assets.accounting.shard_columns import ShardColumns
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.formats.file_index import FileFacts, FileIndex, hashes_of
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import is_remote

T = TypeVar("T")

# What is in memory before it is written.
_FILES_AT_ONCE = 2000
_HASHES_AT_ONCE = 1 << 20
_NO_HASHES = np.empty(0, np.uint64)


@dataclass(frozen=True)
class _Kind:
    """One kind of files: its index, the stamps of all, and what is kept of some."""

    index: FileIndex
    stamps: Callable[[], dict[str, str]]
    facts_of: Callable[[Collection[str]], Iterator[tuple[str, FileFacts]]]


class SurveyIndex:
    """Index of what ``store`` has, beside it; it is brought up to date when asked."""

    def __init__(self, store: SurveyStore) -> None:
        self._store = store
        surveys, published, ids = (
            FileIndex(index_folder(store.root, kind), store.options)
            for kind in ("surveys", "published", "sample_ids")
        )
        self._surveys = _Kind(surveys, store.survey_stamps, self._facts_of_surveys)
        self._published = _Kind(published, store.note_stamps, self._facts_of_notes)
        self._ids = _Kind(ids, store.id_stamps, self._facts_of_ids)

    def columns(self, partitions: Iterable[str]) -> dict[str, ShardColumns]:
        """Return the columns of each surveyed shard among ``partitions``, for `SchemaContract.derive`.

        Integers are told only as far as they decide about types. Shards of the same columns share an object.
        """
        texts, _ = self._texts(self._surveys, partitions)
        return _parsed(texts, survey_codec.columns_from_text)

    def published(self, landed: Iterable[str]) -> dict[str, Published]:
        """Return what the outputs of ``landed`` (published) partitions were made with, as `columns` does."""
        landed = set(landed)
        texts, _ = self._texts(self._published, landed)
        found = _parsed(texts, survey_codec.published_from_text)
        return found | dict(self._store.read_outputs(landed - found.keys()))

    def published_sharing(self, landed: Collection[str], sample_ids: Iterable[str]) -> set[str]:
        """Return the ``landed`` partitions whose outputs may have one of these ids.

        Those that have one are among them, and so are those without notes on their ids.
        """
        noted, stamps = self._texts(self._ids, landed)
        return _sharing(self._ids.index, stamps, noted, sample_ids).union(set(landed) - noted.keys())

    def add_published(self, partitions: Collection[str]) -> None:
        """Index the notes on outputs that were just published."""
        self._texts(self._published, partitions)
        self._texts(self._ids, partitions)

    def surveys_sharing(self, partitions: Iterable[str], sample_ids: Iterable[str]) -> set[str]:
        """Return the partitions whose surveys may have one of these ids.

        Those that have one are among them.
        """
        surveyed, stamps = self._texts(self._surveys, partitions)
        return _sharing(self._surveys.index, stamps, surveyed, sample_ids)

    def _texts(self, kind: _Kind, partitions: Iterable[str]) -> tuple[dict[str, str], Mapping[str, str]]:
        """Return the indexed texts of the partitions that have a readable file, and all stamps.

        What is new is indexed.
        """
        names = {partition: partition_filename(partition) for partition in partitions}
        stamps = kind.stamps()
        indexed = kind.index.texts(stamps)
        texts = {partition: indexed[name] for partition, name in names.items() if name in indexed}
        missing = [key for key, name in names.items() if name in stamps and name not in indexed]
        for some in _batches(kind.facts_of(missing)):
            # What was replaced meanwhile, and put back, has an etag that does not tell what was read.
            latest = kind.stamps() if is_remote(self._store.root) else stamps
            facts = {names[key]: found for key, found in some if latest.get(names[key]) == stamps[names[key]]}
            kind.index.add(facts, stamps)
            texts |= {key: found.text for key, found in some}
        return texts, stamps

    def _facts_of_surveys(self, partitions: Collection[str]) -> Iterator[tuple[str, FileFacts]]:
        for key, (columns, ids) in self._store.columns_and_ids(partitions):
            yield key, FileFacts(survey_codec.columns_to_text(columns), hashes_of(ids.to_pylist()))

    def _facts_of_notes(self, partitions: Collection[str]) -> Iterator[tuple[str, FileFacts]]:
        for key, published in self._store.read_notes(partitions):
            yield key, FileFacts(survey_codec.published_to_text(published), _NO_HASHES)

    def _facts_of_ids(self, partitions: Collection[str]) -> Iterator[tuple[str, FileFacts]]:
        for key, ids in self._store.read_noted_ids(partitions):
            yield key, FileFacts("", hashes_of(ids.to_pylist()))


def _batches(facts: Iterable[tuple[str, FileFacts]]) -> Iterator[list[tuple[str, FileFacts]]]:
    """Yield facts, so many at a time as one segment takes."""
    batch: list[tuple[str, FileFacts]] = []
    hashes = 0
    for entry in facts:
        batch.append(entry)
        hashes += len(entry[1].id_hashes)
        if hashes >= _HASHES_AT_ONCE or len(batch) >= _FILES_AT_ONCE:
            yield batch
            batch, hashes = [], 0
    if batch:
        yield batch


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
