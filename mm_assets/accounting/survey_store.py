"""Store of the surveys of raw shards: small files beside the data, and what is asked of all of them.

ledger/raw_shards/<partition>.parquet   survey of a raw shard: a row per sample
ledger/index/surveys/      types of the columns, and hashes of the sample ids, of each survey
ledger/index/published/    schema, and hashes of the sample ids, of each published output

* `write_survey` and the functions after it are the file formats. Each survey names its shard and has a
  digest, so moved or torn files are detected.
* `SurveyStore` reads and writes surveys, and reads what their published outputs have.
* `SurveyIndex` keeps the index, which answers what the integrity gate asks of all shards in each run. A run
  opens the files of its own shards, and those that are new since the last run.
* `duplicates` are the sample ids that several shards have, of all that ever existed, and the shard that keeps
  each. A single conversion, whose inputs are all there is, has its own: `mm_assets.dataset`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting import CURATED, PUBLISHED, index_folder
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.contract import Published, PublishedOutputs
from mm_assets.accounting.erasures import DenyList
from mm_assets.accounting.survey import (
    SAMPLES_SCHEMA,
    Excerpt,
    ShardColumns,
    ShardSurvey,
    passthrough,
    scrubbed_survey,
)
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UNREADABLE
from mm_assets.formats.reports import ContentColumns
from mm_assets.model.json_codec import FieldTally
from mm_assets.model.losses import Loss
from mm_assets.model.schema import schema_from_text, schema_to_text
from mm_assets.storage.files import is_remote, join, staged
from mm_assets.storage.small_files import (
    FileFacts,
    FileIndex,
    FolderFiles,
    Hashes,
    files_having,
    hashes_of,
    hashes_of_several,
    seal,
    unseal,
)
from mm_assets.storage.stamps import files_in

T = TypeVar("T")

log = logging.getLogger(__name__)

FORMAT = 1
SURVEY_KEY = b"mm_assets:survey"  # key in the Parquet metadata: everything but the sample rows, as JSON

# Pages have checksums, verified on reading: a changed value would affect decisions about other shards.
_WRITTEN = {"compression": "zstd", "write_page_checksum": True}


def write_survey(path: str, partition: str, survey: ShardSurvey) -> None:
    """Write a local Parquet file with a row per sample: the survey of a raw shard."""
    names = pa.array([partition] * survey.samples.num_rows, pa.string())
    # One that was read has all of its file in its metadata, also what is now erased.
    samples = survey.samples.replace_schema_metadata(None)
    table = samples.add_column(0, pa.field("partition", pa.string(), nullable=False), names)
    rest = {
        "format": FORMAT,
        "partition": partition,
        "version": survey.version,
        "layout": survey.layout,
        "members": survey.members,
        "nbytes": survey.nbytes,
        "losses": {kind: _excerpt_to_json(losses, asdict) for kind, losses in survey.losses.items()},
        "unresolved": _excerpt_to_json(survey.unresolved, list),
        "frame_counts": _excerpt_to_json(survey.frame_counts, list),
        "unreferenced": _excerpt_to_json(survey.unreferenced, str),
        "skipped": _excerpt_to_json(survey.skipped, str),
        **({} if survey.left_out is None else {"left_out": _excerpt_to_json(survey.left_out, str)}),
        **({} if survey.content is None else {"content": survey.content, "has_pairs": survey.has_pairs}),
        **({} if survey.documents is None else {"documents": survey.documents}),
        **_columns_to_json(survey.columns),
    }
    with pq.ParquetWriter(path, table.schema, **_WRITTEN) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({SURVEY_KEY.decode(): _sealed(rest)})


def read_survey(partition: str, data: bytes) -> ShardSurvey:
    """Read the survey of this partition.

    Raises:
        UNREADABLE: (one of these classes) the data is anything else.
    """
    file, rest = _open(partition, data)
    return ShardSurvey(
        rest["version"],
        rest["layout"],
        _read(file, SAMPLES_SCHEMA),
        {
            kind: _excerpt_from_json(losses, lambda values: Loss(**values))
            for kind, losses in rest["losses"].items()
        },
        _excerpt_from_json(rest["unresolved"], tuple),
        _excerpt_from_json(rest["frame_counts"], tuple),
        _excerpt_from_json(rest["unreferenced"], str),
        _excerpt_from_json(rest.get("skipped", {"count": 0, "first": []}), str),
        _columns_from_json(rest),
        rest["members"],
        rest["nbytes"],
        _content_from_json(rest.get("content")),
        rest.get("has_pairs"),
        _excerpt_from_json(rest["left_out"], str) if "left_out" in rest else None,
        rest.get("documents"),
    )


def columns_to_text(columns: ShardColumns) -> str:
    """Return columns as text; it is the same for shards that require the same types in the same order."""
    return json.dumps(_columns_to_json(columns.rounded()))


def columns_from_text(text: str) -> ShardColumns:
    """Return columns that require the same types as those that `columns_to_text` was given."""
    return _columns_from_json(json.loads(text))


def published_to_text(published: Published) -> str:
    """Return what an output was made with as text. It is ASCII: names of columns may hold lone surrogates."""
    schema = schema_to_text(pa.schema(passthrough(published.schema)))
    return json.dumps({"schema": schema, **_columns_to_json(published.columns)})


def published_from_text(text: str) -> Published:
    """Return what `published_to_text` was given.

    Raises:
        UNREADABLE: (one of these classes) the text is anything else.
    """
    values = json.loads(text)
    return Published(schema_from_text(values["schema"]), _columns_from_json(values))


def read_sample_ids(partition: str, data: bytes) -> pa.ChunkedArray:
    """Read only the sample ids of a survey. Raises as `read_survey`."""
    return _sample_ids(_open(partition, data)[0])


def read_columns_and_ids(partition: str, data: bytes) -> tuple[ShardColumns, pa.ChunkedArray]:
    """Read columns and sample ids of a survey. Raises as `read_survey`."""
    file, rest = _open(partition, data)
    return _columns_from_json(rest), _sample_ids(file)


def stated_partition(data: bytes) -> str:
    """Return the partition that a survey names as its own. Raises as `read_survey`."""
    return str(_open(None, data)[1]["partition"])


def _open(partition: str | None, data: bytes) -> tuple[pq.ParquetFile, dict[str, Any]]:
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    return file, _checked(partition, file.metadata.metadata[SURVEY_KEY])


def _sample_ids(file: pq.ParquetFile) -> pa.ChunkedArray:
    return _read(file, pa.schema([SAMPLES_SCHEMA.field("sample_id")])).column("sample_id")


def _read(file: pq.ParquetFile, schema: pa.Schema) -> pa.Table:
    """Return these columns, if they have these types and as many rows as the file states.

    Raises:
        UNREADABLE: (one of these classes) they do not.
    """
    table = file.read(columns=schema.names, use_threads=False).select(schema.names)
    groups = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    if table.schema != schema or not table.num_rows == sum(groups) == file.metadata.num_rows:
        raise ValueError("its footer contradicts itself")
    table.validate(full=True)
    return table


def _sealed(values: Mapping[str, Any]) -> str:
    """Return sealed JSON, ASCII inside: text from bad data may hold lone surrogates."""
    return seal({"content": json.dumps(values)}).decode()


def _checked(partition: str | None, data: bytes) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(unseal(data)["content"])
    if values["format"] != FORMAT:
        raise ValueError(f"not of format {FORMAT}")
    if partition not in (None, values["partition"]):
        raise ValueError(f"belongs to shard {values['partition']!r}")
    return values


def _excerpt_to_json(excerpt: Excerpt[Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    return {"count": excerpt.count, "first": [form(entry) for entry in excerpt.first]}


def _excerpt_from_json(values: Mapping[str, Any], form: Callable[[Any], Any]) -> Excerpt[Any]:
    return Excerpt(tuple(form(entry) for entry in values["first"]), values["count"])


def _content_from_json(values: Mapping[str, Any] | None) -> ContentColumns | None:
    """Return the columns that look like content; None for a survey by earlier code, which does not tell."""
    return None if values is None else {modality: tuple(names) for modality, names in values.items()}


def _columns_to_json(columns: ShardColumns) -> dict[str, Any]:
    return {
        "tallies": _tallies_to_json(columns.tallies),
        "declared": schema_to_text(columns.declared),
        "declared_ints": _tallies_to_json(columns.declared_ints),
    }


def _columns_from_json(values: Mapping[str, Any]) -> ShardColumns:
    # Missing in files of older versions, which are still read: published types must not be forgotten.
    ints = values.get("declared_ints", {})
    return ShardColumns(
        _tallies_from_json(values["tallies"]), schema_from_text(values["declared"]), _tallies_from_json(ints)
    )


def _tallies_to_json(tallies: Mapping[str, FieldTally]) -> dict[str, Any]:
    return {name: tally.to_json() for name, tally in tallies.items()}


def _tallies_from_json(values: Mapping[str, Any]) -> dict[str, FieldTally]:
    return {name: FieldTally.from_json(tally) for name, tally in values.items()}


_SUFFIX = ".parquet"
_AT_ONCE = 64  # files held in memory


class SurveyStore(FolderFiles):
    """Surveys below ``root`` (a folder or a URL), and the published outputs of ``asset``.

    An unreadable survey is logged and counts as missing: its shard is surveyed again. Where the account of a
    published output does not tell of its columns, the output itself is read.
    """

    def __init__(self, root: str, asset: str = CURATED.asset) -> None:
        super().__init__(join(root, "ledger", "raw_shards"))
        self.root = root
        self._asset = asset
        self._ledger = Ledger(root)
        self._outputs = PublishedOutputs(root, asset)

    def write(self, partition: str, survey: ShardSurvey) -> None:
        """Publish a survey in one step; a local file with the same bytes is not rewritten."""
        with staged(self.uri(partition)) as file:
            write_survey(file.path, partition, survey)
            file.publish()

    def read(self, partition: str, version: str | None = None) -> ShardSurvey | None:
        """Return the survey of a raw shard; None without one of this version (where given)."""
        for _, survey in self._surveys([partition], read_survey):
            if version in (None, survey.version):
                return survey
        return None

    def surveys(self, partitions: Iterable[str]) -> Iterator[tuple[str, ShardSurvey]]:
        """Yield the survey of each surveyed shard."""
        names = {key: partition_filename(key) for key in partitions}
        listed: Collection[str] = names.values()
        if len(names) > 1 and is_remote(self.folder):
            with suppress(PermissionError):  # a store may refuse to list
                listed = self.survey_stamps()
        return self._surveys([key for key, name in names.items() if name in listed], read_survey)

    def columns_and_ids(
        self, partitions: Iterable[str]
    ) -> Iterator[tuple[str, tuple[ShardColumns, pa.ChunkedArray]]]:
        """Yield the columns of each surveyed shard, and the ids of its readable samples."""
        return self._surveys(partitions, read_columns_and_ids)

    def sample_ids(self, partitions: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield the readable samples' ids of each surveyed shard, a few shards in memory at a time."""
        return self._surveys(partitions, read_sample_ids)

    def partitions_with(self, sample_id: str) -> list[str]:
        """Return the partitions whose survey has a sample, published or not."""
        target = pa.scalar(sample_id)
        ids = self.sample_ids(self.partitions())
        return [partition for partition, of_shard in ids if pc.index(of_shard, target).as_py() >= 0]

    def partitions(self) -> list[str]:
        """Return the partitions that have a survey, sorted; their raw shards may no longer exist."""
        names = [name.removesuffix(_SUFFIX) for name in self._list("") if name.endswith(_SUFFIX)]
        # The partition keys of hashed names are only inside the files.
        hashed = {f"{name}{_SUFFIX}": name for name in names if name.startswith("=")}
        stated = [partition for _, partition in self._parsed(hashed, lambda _, data: stated_partition(data))]
        return sorted([*(unquote(name) for name in names if not name.startswith("=")), *stated])

    def uri(self, partition: str) -> str:
        """Return the location of a partition's survey, existing or not."""
        return self._uri(f"{partition_filename(partition)}{_SUFFIX}")

    def published(self, landed: Iterable[str]) -> Iterator[tuple[str, Published]]:
        """Yield what the outputs of ``landed`` (published) partitions were made with."""
        remaining = set(landed)
        for key, record in self._ledger.records(self._asset, remaining).items():
            with suppress(*UNREADABLE):  # of an early release, or damaged: the output tells
                yield key, published_from_text(record.account[PUBLISHED])
                remaining.remove(key)
        yield from self._outputs.published(remaining)

    def versions(self, landed: Iterable[str]) -> dict[str, str]:
        """Return the data versions of the outputs of ``landed`` partitions."""
        records = self._ledger.records(self._asset, landed)
        return {key: record.version for key, record in records.items()}

    def published_ids(self, landed: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield the sample ids in the outputs of ``landed`` partitions, a few shards in memory at a time."""
        return self._outputs.sample_ids(landed)

    def survey_stamps(self) -> dict[str, str]:
        """Return a text for each survey that changes when it is replaced, by its name without suffix."""
        return self._stamps(self.folder)

    def published_stamps(self) -> dict[str, str]:
        """Return the same of the accounts of published outputs."""
        return self._stamps(self._ledger.folder(self._asset))

    def _stamps(self, folder: str) -> dict[str, str]:
        return {
            name.removesuffix(_SUFFIX): file.stamp
            for name, file in files_in(folder, suffix=_SUFFIX).items()
            if not name.startswith(".")
        }

    def _surveys(
        self, partitions: Iterable[str], parse: Callable[[str, bytes], T]
    ) -> Iterator[tuple[str, T]]:
        names = {f"{partition_filename(key)}{_SUFFIX}": key for key in sorted(partitions)}
        return self._parsed(names, parse)

    def _parsed(self, keys: dict[str, str], parse: Callable[[str, bytes], T]) -> Iterator[tuple[str, T]]:
        """Yield key and ``parse(key, content)`` of each file that exists; ``keys`` are by file name."""
        names = list(keys)
        for start in range(0, len(names), _AT_ONCE):
            for name, data in self._read_many(names[start : start + _AT_ONCE]).items():
                try:
                    parsed = parse(keys[name], data)
                except UNREADABLE as error:
                    log.warning("%s is unreadable and left out: %s", self._uri(name), error)
                    continue
                yield keys[name], parsed


# What is in memory before it is written.
_FILES_AT_ONCE = 2000
_HASHES_AT_ONCE = 1 << 20


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
        surveys, published = (FileIndex(index_folder(store.root, kind)) for kind in ("surveys", "published"))
        self._surveys = _Kind(surveys, store.survey_stamps, self._facts_of_surveys)
        self._published = _Kind(published, store.published_stamps, self._facts_of_outputs)

    def columns(self, partitions: Iterable[str]) -> dict[str, ShardColumns]:
        """Return the columns of each surveyed shard among ``partitions``, for `SchemaContract.derive`.

        Integers are told only as far as they decide about types. Shards of the same columns share an object.
        """
        texts, _ = self._texts(self._surveys, partitions)
        return _parsed(texts, columns_from_text)

    def published(self, landed: Iterable[str]) -> dict[str, Published]:
        """Return what the outputs of ``landed`` (published) partitions were made with, as `columns` does."""
        landed = set(landed)
        texts, _ = self._texts(self._published, landed)
        found = _parsed(texts, published_from_text)
        return found | dict(self._store.published(landed - found.keys()))

    def published_sharing(self, landed: Collection[str], id_hashes: Hashes) -> dict[str, Hashes | None]:
        """Return those of the hashes that the output of each ``landed`` partition has, if it has any.

        None: nothing is known of it, so it may have any.
        """
        known, stamps = self._texts(self._published, landed)
        found = _sharing(self._published.index, stamps, known, id_hashes)
        return found | dict.fromkeys(set(landed) - known.keys())

    def add_published(self, versions: Mapping[str, str], facts: Mapping[str, FileFacts]) -> None:
        """Index outputs that were just published in these versions, by what was known when they were made."""
        stamps = self._published.stamps()
        # Another run may have replaced some meanwhile: the next one indexes them.
        current = self._store.versions(versions)
        names = {key: partition_filename(key) for key in facts if current.get(key) == versions[key]}
        self._published.index.add({name: facts[key] for key, name in names.items() if name in stamps}, stamps)

    def surveys_sharing(self, partitions: Iterable[str], id_hashes: Hashes) -> dict[str, Hashes | None]:
        """Return the same of the survey of each partition."""
        surveyed, stamps = self._texts(self._surveys, partitions)
        return _sharing(self._surveys.index, stamps, surveyed, id_hashes)

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
            yield key, FileFacts(columns_to_text(columns), hashes_of(ids.to_pylist()))

    def _facts_of_outputs(self, partitions: Collection[str]) -> Iterator[tuple[str, FileFacts]]:
        ids = self._store.published_ids(partitions)
        published = dict(self._store.published(partitions))
        for key, sample_ids in ids:
            if key in published:
                yield key, published_facts(published[key], sample_ids.to_pylist())


def published_facts(published: Published, sample_ids: Iterable[str]) -> FileFacts:
    """Return what the index keeps of a published output."""
    rounded = replace(published, columns=published.columns.rounded())
    return FileFacts(published_to_text(rounded), hashes_of(sample_ids))


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
    index: FileIndex, stamps: Mapping[str, str], partitions: Iterable[str], id_hashes: Hashes
) -> dict[str, Hashes | None]:
    names = {partition_filename(partition): partition for partition in partitions}
    found = index.sharing({name: stamps[name] for name in names}, id_hashes)
    return {names[name]: hashes for name, hashes in found.items()}


def _parsed(texts: Mapping[str, str], parse: Callable[[str], T]) -> dict[str, T]:
    """Return each text parsed; equal ones are parsed once."""
    parsed = {text: parse(text) for text in set(texts.values())}
    return {partition: parsed[text] for partition, text in texts.items()}


def scrub_surveys(root: str, partitions: Iterable[str]) -> int:
    """Write surveys anew that tell of an erased sample more than its alias.

    Returns:
        How many.
    """
    deny, store = DenyList.read(root), SurveyStore(root)
    written = 0
    for partition, survey in store.surveys(partitions) if deny else ():
        scrubbed = scrubbed_survey(partition, survey, deny)
        if scrubbed != survey:
            store.write(partition, scrubbed)
            written += 1
    return written


_LEAST_IDS = 1 << 16  # fewer ids are not looked up at once


def duplicates(
    store: SurveyStore,
    run: Mapping[str, pa.ChunkedArray],
    landed: Collection[str],
    known: Collection[str],
    faulty: Callable[[str], Collection[str]] = lambda _: (),
    stuck: Collection[str] = (),
) -> dict[str, dict[str, str]]:
    """Return for each partition of the run the sample ids to leave out, with the partitions that keep them.

    A partition whose output has the id keeps it, unless the run makes that output again from a raw shard
    without it. Otherwise the partition with the smallest key keeps it, where sound samples come before faulty
    ones. Only files that may have one of the ids are read, a few at a time: memory grows with the ids of the
    run, and by one segment of the index.

    Args:
        store: surveys and published ids.
        run: sample ids of the raw shards of the run, by partition.
        landed: partitions with an output.
        known: partitions that count: with a raw shard or an output.
        faulty: returns the ids of a partition's samples that will hardly be published; asked only about
            partitions whose ids others have, too.
        stuck: partitions of the run that will get no new output.
    """
    best: dict[str, tuple[bool, bool, str]] = {}

    def add_candidates(partition: str, sample_ids: Collection[str], is_kept: bool) -> None:
        weak = faulty(partition) if sample_ids and not is_kept else ()
        for sample_id in sample_ids:
            candidate = (not is_kept, sample_id in weak, partition)
            best[sample_id] = min(best.get(sample_id, candidate), candidate)

    ids = _concat(run.values()).dictionary_encode().combine_chunks()
    hashes = hashes_of(ids.dictionary.to_pylist())
    index = SurveyIndex(store)
    outputs = index.published_sharing(landed, hashes)
    surveys = index.surveys_sharing(set(known) - set(run), hashes)
    bounds = np.cumsum([0, *map(len, run.values())])
    of_rows = hashes[ids.indices.to_numpy()]
    rows = {key: of_rows[first:last] for key, first, last in zip(run, bounds, bounds[1:], strict=False)}
    contested = hashes_of_several(rows, outputs, surveys)
    shared = ids.dictionary.filter(pa.array(np.isin(hashes, contested)))
    for partition, shared_ids in _shared(store.published_ids(files_having(contested, outputs)), shared):
        if partition in run and partition not in stuck and shared_ids:
            raw_ids = run[partition]
            ids_left = set(raw_ids.filter(pc.is_in(raw_ids, pa.array(shared_ids, pa.string()))).to_pylist())
            shared_ids = [sample_id for sample_id in shared_ids if sample_id in ids_left]
        add_candidates(partition, shared_ids, is_kept=True)
    for partition, shared_ids in _shared(store.sample_ids(files_having(contested, surveys)), shared):
        add_candidates(partition, shared_ids, is_kept=False)
    of_run: dict[str, list[str]] = {key: [] for key in run} | dict(_shared(run.items(), shared))
    for partition, shared_ids in of_run.items():
        add_candidates(partition, shared_ids, is_kept=False)
    return {
        partition: {
            sample_id: best[sample_id][2] for sample_id in shared_ids if best[sample_id][2] != partition
        }
        for partition, shared_ids in of_run.items()
    }


def _shared(columns: Iterable[tuple[str, pa.ChunkedArray]], ids: pa.Array) -> Iterator[tuple[str, list[str]]]:
    """Yield for each partition its sample ids that are among ``ids``."""
    if not len(ids):
        return
    # Each lookup hashes all ``ids``, so at least as many other ids are looked up together.
    pending: list[tuple[str, pa.ChunkedArray]] = []
    filled = 0
    for partition, others in columns:
        pending.append((partition, others))
        filled += len(others)
        if filled >= max(len(ids), _LEAST_IDS):
            yield from _found(pending, ids)
            pending, filled = [], 0
    yield from _found(pending, ids)


def _found(pending: list[tuple[str, pa.ChunkedArray]], ids: pa.Array) -> Iterator[tuple[str, list[str]]]:
    others = _concat(column for _, column in pending)
    rows = pc.indices_nonzero(pc.is_in(others, ids)).to_numpy()
    values = others.take(pa.array(rows)).to_pylist()
    bounds = np.searchsorted(rows, np.cumsum([0, *(len(column) for _, column in pending)]))
    for (partition, _), low, high in zip(pending, bounds, bounds[1:], strict=False):
        yield partition, values[low:high]


def _concat(columns: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
