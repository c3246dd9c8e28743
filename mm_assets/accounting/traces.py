"""Traces of samples that are to be erased: what the entries of a deny list mean, and where it is.

* `find` says which samples these are, and makes their `Needles`; `without_shared` takes out those that other
  samples have, too.
* `stale_outputs` tells which outputs may have rows that the curated ones have not.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from mm_assets.accounting import BY_ASSET, CURATED, DERIVED_FOLDERS, OUTPUTS, locator_columns
from mm_assets.accounting.accounts import Ledger, losses_digest
from mm_assets.accounting.erasures import MD5, PDQ, SAMPLE_ID, SHA256, URL, Denial, DenyList, Entry
from mm_assets.accounting.needles import Needles
from mm_assets.accounting.scan import BATCH_BYTES, batches_in
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.filters.known_hashes import KnownHashes
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UnreadableFile, parquet_file, read_small_table
from mm_assets.formats.partitions import Partition
from mm_assets.formats.raw_shards import RawReader
from mm_assets.formats.registry import reader_for
from mm_assets.model.errors import ERASED, INCOMPLETE_SAMPLE
from mm_assets.model.nested_types import take_rows
from mm_assets.model.schema import METADATA_POSITION
from mm_assets.pool import MapsJobs, WorkerFailure
from mm_assets.storage.errors import is_store_failure
from mm_assets.storage.files import exists, join
from mm_assets.storage.small_files import small_object
from mm_assets.storage.stamps import files_in, stat_outputs

_HASHES = (SHA256, MD5, PDQ)
_SCORES = "image_scores"
_LOCATED = ["sample_id", "position", "modality", "source_ref"]


@dataclass(frozen=True)
class FoundSample:
    """A sample that is to be erased, or some of its items.

    Attributes:
        partition: its shard.
        sample_id: its id.
        items: position and modality of the items that are denied.
        is_whole: whether it goes as a whole, with its id.
        members: raw file and member of each of these items, as far as locators name them.
        is_past: whether stale outputs or earlier states have it, and not what is made of raw shards now. A
            sample of the same id may be there now and stay.
    """

    partition: str
    sample_id: str
    items: tuple[tuple[int | None, str | None], ...]
    is_whole: bool
    members: tuple[tuple[str, str], ...] = ()
    is_past: bool = False

    @classmethod
    def of_row(
        cls, partition: str, row: Mapping[str, Any], *, is_whole: bool, is_past: bool = False
    ) -> FoundSample:
        """Return the sample of an item: its id, position and modality, and its ``source`` and ``member``."""
        member = row.get("source") or "", row.get("member") or ""
        item = row["position"], row["modality"]
        members = (member,) if all(member) else ()
        return cls(partition, row["sample_id"] or "", (item,), is_whole, members, is_past)


@dataclass(frozen=True)
class Found:
    """What is to be erased, and what it is found by."""

    samples: tuple[FoundSample, ...]
    needles: Needles

    @classmethod
    def of(cls, samples: Iterable[FoundSample], needles: Iterable[Needles]) -> Found:
        """Return them with each sample once, in the order of shards and ids."""
        parts: dict[tuple[str, str, bool], list[FoundSample]] = {}
        for sample in samples:
            parts.setdefault((sample.partition, sample.sample_id, sample.is_past), []).append(sample)
        merged = [
            FoundSample(
                partition,
                sample_id,
                tuple(sorted({item for part in of for item in part.items}, key=str)),
                any(part.is_whole for part in of),
                tuple(sorted({member for part in of for member in part.members})),
                is_past,
            )
            for (partition, sample_id, is_past), of in sorted(parts.items())
        ]
        return cls(tuple(merged), Needles.joined(needles))

    def rows(self) -> dict[str, int]:
        """Return the number of denied items by partition."""
        items = {(one.partition, one.sample_id, *item) for one in self.samples for item in one.items}
        return dict(sorted(Counter(partition for partition, *_ in items).items()))


@dataclass(frozen=True)
class RawDocuments:
    """Raw shards, whose documents are looked into where outputs tell nothing of them.

    Attributes:
        files: raw files of each shard.
        layout: arguments of `RawReader`.
    """

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)

    def of(self, partition: str) -> Iterator[pa.Table]:
        """Yield the rows of a shard without the bytes of images.

        Raises:
            OSError, ValueError: it is not there, or cannot be read.
        """
        shard = Partition(partition, self.files.get(partition, ()))
        if not shard.files:
            raise FileNotFoundError(f"no raw shard {partition!r}")
        reader = RawReader((), **self.layout, quarantine_errors=True)
        names = [name for name in reader.open(shard).schema.names if name != "binary_content"]
        yield from reader.project(shard, names)[1]


@dataclass(frozen=True)
class _ShardJob:
    root: str
    partition: str
    deny: DenyList = field(default_factory=DenyList)
    found: Found = field(default_factory=lambda: Found((), Needles()))
    stale: frozenset[str] = frozenset()
    raw: RawDocuments = field(default_factory=RawDocuments)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def entries(self, *kinds: str) -> dict[Entry, Denial]:
        """Return the entries of some kinds."""
        return {entry: denial for entry, denial in self.deny.entries.items() if entry.kind in kinds}

    def parquet(self, folder: str) -> str:
        """Return the location of the shard's file in a folder of the storage root."""
        return join(self.root, folder, f"{partition_filename(self.partition)}.parquet")

    @contextmanager
    def opened(self, uri: str) -> Iterator[pq.ParquetFile | None]:
        """Open one of the files that were listed; None: it was not, or is gone."""
        with ExitStack() as stack:
            file = None
            if uri in self.sizes:
                data = small_object(uri, self.sizes[uri])
                with suppress(FileNotFoundError):
                    opened = parquet_file(uri) if data is None else pq.ParquetFile(BytesIO(data))
                    file = stack.enter_context(opened)
            yield file


def find(
    root: str,
    deny: DenyList,
    pool: MapsJobs,
    stale: Mapping[str, frozenset[str]] | None = None,
    raw: RawDocuments | None = None,
) -> Found:
    """Find the samples of a storage root that a deny list means.

    Curated rows, quarantine, accounts and surveys are looked through: lost samples are found, too. What is
    made of the curated rows that are there has no others, and is not read; what is stale is. Images are read
    only where stored scores do not tell their hashes. Earlier versions of the table are not looked through.

    Args:
        root: storage root.
        deny: what is looked for.
        pool: does the work.
        stale: what `stale_outputs` returns; None: found here.
        raw: where to look for URLs of samples that ingest dropped: no output has their documents.

    Raises:
        OSError: a shard cannot be looked through; the message names it.
    """
    stale = stale_outputs(root) if stale is None else stale
    raw = RawDocuments() if raw is None or all(entry.kind != URL for entry in deny.entries) else raw
    each = _of_shards(pool, _find_in_shard, root, stale, raw, deny=deny)
    samples = (sample for found in each for sample in found.samples)
    return Found.of(samples, (found.needles for found in each))


def without_shared(root: str, found: Found, pool: MapsJobs) -> Needles:
    """Return the needles that no other curated row or quarantine record of the storage root has.

    Nor has one of these any of the ids that are left. Raises as `find`, which has to come first: after the
    erasure nobody knows what the others are.
    """
    each = _of_shards(pool, _shared_in_shard, root, found=found)
    shared = {number for numbers, _ in each for number in numbers}
    ids = {sample_id for _, stay in each for sample_id in stay}
    shards = _partitions(root)
    names = {name for shard in shards for name in (shard, shard.rpartition("/")[2])}
    return found.needles.without(shared, "other samples have it, too", ids, names)


def _partitions(root: str) -> set[str]:
    return {*SurveyStore(root).partitions(), *Ledger(root).named(CURATED.asset)}


def stale_outputs(root: str, states: set[tuple[str, str, str]] | None = None) -> dict[str, frozenset[str]]:
    """Return the assets whose output of a shard may have rows that its curated output has not, by shard.

    Every shard is named of which there is a survey or an account. That of a killed run may be an earlier one.
    ``states`` gets shard, data version and digest of losses of each account.
    """
    ledger = Ledger(root)
    assets = (*BY_ASSET, *DERIVED_FOLDERS)
    named = {name for asset in assets for name in ledger.named(asset)}
    partitions = sorted({*SurveyStore(root).partitions(), *named})
    records = {asset: ledger.records(asset, partitions) for asset in assets}
    if states is not None:
        each = (record for of_asset in records.values() for record in of_asset.values())
        states.update((record.key, record.version, losses_digest(record)) for record in each)
    curated = records[CURATED.asset]
    stats = stat_outputs(record.uri for record in curated.values() if record.uri)
    sound = {key for key, record in curated.items() if not record.uri or stats[record.uri] == record.stat}

    def is_made_of_curated(asset: str, partition: str) -> bool:
        source = BY_ASSET[asset].source if asset in BY_ASSET else CURATED.asset
        if source is None:
            return partition in sound
        record, of = records[asset].get(partition), records[source].get(partition)
        made_of = {} if record is None else record.account.get("inputs", {})
        return of is not None and made_of.get(source) == of.version and is_made_of_curated(source, partition)

    return {
        name: frozenset(asset for asset in assets if not is_made_of_curated(asset, name))
        for name in partitions
    }


def _of_shards(
    pool: MapsJobs,
    work: Callable[[_ShardJob], Any],
    root: str,
    stale: Mapping[str, frozenset[str]] | None = None,
    raw: RawDocuments | None = None,
    **given: Any,
) -> list[Any]:
    if stale is None:
        stale = dict.fromkeys(_partitions(root), frozenset())
    raw = raw or RawDocuments()
    jobs = []
    folders = (CURATED.folder, DERIVED_FOLDERS["quarantine"])
    listed = {folder: files_in(join(root, folder)) for folder in folders}
    for name in sorted(stale):
        files = RawDocuments({name: raw.files.get(name, ())}, raw.layout)
        job = _ShardJob(root, name, stale=stale[name], raw=files, **given)
        present = {folder: listed[folder].get(posixpath.basename(job.parquet(folder))) for folder in folders}
        sizes = {job.parquet(folder): file.size for folder, file in present.items() if file is not None}
        jobs.append(replace(job, sizes=sizes))
    results = []
    for job, result in pool.map(work, jobs):
        if isinstance(result, WorkerFailure):
            raise OSError(result.at(f"shard {job.partition!r}"))
        results.append(result)
    return results


def _find_in_shard(job: _ShardJob) -> Found:
    denied: list[FoundSample] = []
    needles: list[Needles] = []
    names = ["sample_id", "position", "modality", "source_uri", "member", "raw"]
    quarantine = job.parquet(DERIVED_FOLDERS["quarantine"])
    quarantined = _rows(quarantine, names) if quarantine in job.sizes else []
    if job.entries(URL) and (dropped := _dropped_documents(job, quarantined)):
        try:
            job = _with_dropped(job, dropped)
        except (OSError, ValueError) as error:
            if is_store_failure(error):
                raise
            told = f"{URL}, in documents of samples that ingest dropped"
            needles.append(Needles(omitted={told: len(dropped)}))

    def add(row: dict[str, Any], is_whole: bool, is_past: bool = False) -> None:
        denied.append(FoundSample.of_row(job.partition, row, is_whole=is_whole, is_past=is_past))

    for found, is_past in ((_denied_rows(job), False), (_stale_rows(job), True)):
        for rows, is_whole in found:
            needles.append(Needles.of(rows, is_whole=is_whole))
            for row in rows.select(_LOCATED).to_pylist():
                add(row | locator_columns(row["source_ref"]), is_whole, is_past)
    for row in quarantined:
        raw, is_hidden = row["raw"], job.deny.hides_sample(row["sample_id"] or "")
        is_denied = raw is not None and job.deny.hides_bytes(raw)
        if is_hidden or is_denied:
            # A document, unlike an image, is that of the whole sample.
            is_whole = row["sample_id"] is not None and (is_hidden or raw[:1] == b"{")
            ids = [row["sample_id"]] if is_whole else []
            needles.append(Needles.of_values([] if raw is None else [raw], ids))
            add(row | {"source": row["source_uri"]}, is_whole)
    survey = SurveyStore(job.root).uri(job.partition)
    of_document: dict[str, Any] = {"position": METADATA_POSITION, "modality": "metadata"}
    known = [of_document | row for row in _rows(survey, ["sample_id", "source", "member"])]
    ledger = Ledger(job.root)
    for asset in sorted(job.stale | {CURATED.asset} if job.entries(SAMPLE_ID) else ()):
        known += ledger.items(asset, job.partition).to_pylist()
        if asset in DERIVED_FOLDERS:
            stale = _rows(job.parquet(DERIVED_FOLDERS[asset]), ["sample_id"])
            known += [of_document | row for row in stale]
    for row in known:
        if row["sample_id"] is not None and job.deny.hides_sample(row["sample_id"]):
            needles.append(Needles.of_values([], [row["sample_id"]]))
            add(row, is_whole=True)
    return Found.of(denied, needles)


def _with_dropped(job: _ShardJob, dropped: set[str]) -> _ShardJob:
    """Return the job with those of some samples denied whose raw documents have a denied URL."""
    urls = DenyList(job.entries(URL))
    found = {
        sample_id
        for table in job.raw.of(job.partition)
        for rows, is_whole in rows_denied(table, urls.denials(table, ()))
        for sample_id in rows.column("sample_id").to_pylist()
        if is_whole
    }
    whole = {Entry.of(SAMPLE_ID, name): Denial(ERASED, "", is_of_sample=True) for name in found & dropped}
    return replace(job, deny=DenyList({**job.deny.entries, **whole}))


def _dropped_documents(job: _ShardJob, quarantined: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the ids of samples that were dropped for an item, and of whose document nothing is kept."""
    items = Ledger(job.root).items(CURATED.asset, job.partition)
    is_one = pc.and_(pc.equal(items["modality"], "metadata"), pc.equal(items["kind"], INCOMPLETE_SAMPLE))
    kept = {row["sample_id"] for row in quarantined if (row["raw"] or b"")[:1] == b"{"}
    return set(items["sample_id"].filter(is_one).to_pylist()) - kept


def _denied_rows(job: _ShardJob) -> Iterator[tuple[pa.Table, bool]]:
    """Yield denied rows of the curated output, and whether they are whole samples."""
    of_images, others = DenyList(job.entries(*_HASHES)), DenyList(job.entries(SAMPLE_ID, URL))
    likely = _likely_samples(job, of_images) if of_images else set()
    with job.opened(CURATED.uri(job.root, job.partition)) as file:
        if file is None:
            return
        names = [name for name in file.schema_arrow.names if name != "binary_content"]
        names = names if job.entries(URL) else _LOCATED
        for group in range(file.metadata.num_row_groups):  # each has whole samples
            table = file.read_row_group(group, columns=names, use_threads=False)
            denials = others.denials(table)
            ids = table.column("sample_id").to_pylist()
            has_likely = likely is None or not likely.isdisjoint(ids)
            if not denials and not has_likely:
                continue
            table = file.read_row_group(group, use_threads=False)
            if has_likely:
                denials = {**of_images.denials(table, ()), **denials}
            yield from rows_denied(table, denials)


def _stale_rows(job: _ShardJob) -> Iterator[tuple[pa.Table, bool]]:
    """Yield denied rows of outputs that may have others than the curated one; the table is not read."""
    for output in OUTPUTS:
        place = output.place(job.root, job.partition)
        is_read = output is not CURATED and not output.format.is_table and output.asset in job.stale
        if is_read and exists(output.uri(job.root, job.partition)):
            reader = reader_for(output.kind, place, max_batch_bytes=BATCH_BYTES)
            for batch in reader:
                yield from rows_denied(batch.data, job.deny.denials(batch.data, ()))


def rows_denied(table: pa.Table, denials: Mapping[int, Denial]) -> Iterator[tuple[pa.Table, bool]]:
    """Yield the rows that denials are of, and whether they are whole samples."""
    ids = table.column("sample_id").to_pylist() if denials else []
    gone = {ids[row] for row, denial in denials.items() if denial.is_of_sample}
    whole = [row for row, sample_id in enumerate(ids) if sample_id in gone]
    single = [row for row in denials if ids[row] not in gone]
    for rows, is_whole in ((whole, True), (sorted(single), False)):
        if rows:
            yield take_rows(table, rows), is_whole


def _likely_samples(job: _ShardJob, deny: DenyList) -> set[str] | None:
    """Return the ids of samples with an image that stored scores know as denied; None if they do not tell."""
    ledger = Ledger(job.root)
    made, scored = (
        ledger.records(asset, [job.partition]).get(job.partition) for asset in (CURATED.asset, _SCORES)
    )
    of_kind = {SHA256: "sha256", PDQ: "perceptual_hash"}
    kinds = {entry.kind for entry in deny.entries}
    if made is None or scored is None or not kinds <= of_kind.keys():
        return None
    if made.version not in scored.account.get("inputs", {}).values():
        return None  # they are those of earlier rows
    names = [of_kind[kind] for kind in sorted(kinds)]
    try:
        scores = _rows(job.parquet(DERIVED_FOLDERS[_SCORES]), ["sample_id", *names])
    except UnreadableFile:
        return None  # or these were not measured

    digests = {entry.value for entry in deny.entries if entry.kind == SHA256}
    pictures = [entry for entry in deny.entries if entry.kind == PDQ]
    known = KnownHashes([entry.value for entry in pictures], [entry.radius for entry in pictures])

    def is_likely(kind: str, score: str | None) -> bool:
        return score is None or (score in digests if kind == SHA256 else known.nearest(score) is not None)

    return {row["sample_id"] for row in scores if any(is_likely(kind, row[of_kind[kind]]) for kind in kinds)}


def _rows(uri: str, columns: list[str]) -> list[dict[str, Any]]:
    try:
        return read_small_table(uri, columns).to_pylist()
    except FileNotFoundError:
        return []


def _shared_in_shard(job: _ShardJob) -> tuple[set[int], set[str]]:
    """Return the numbers of the needles that rows have which stay, and those of the ids."""
    samples = job.found.samples
    ours = [sample for sample in samples if sample.partition == job.partition and not sample.is_past]
    whole = {sample.sample_id for sample in ours if sample.is_whole}
    items = {(sample.sample_id, *item) for sample in ours for item in sample.items}
    search = job.found.needles.search()
    shared: set[int] = set()
    stay: set[str] = set()
    for uri in (CURATED.uri(job.root, job.partition), job.parquet(DERIVED_FOLDERS["quarantine"])):
        with job.opened(uri) as file:
            for batch in batches_in(file, None) if file is not None else ():
                keys = [*zip(*(batch.column(name).to_pylist() for name in _LOCATED[:3]), strict=True)]
                stays = [row for row, key in enumerate(keys) if key[0] not in whole and key not in items]
                stay.update(keys[row][0] for row in stays if keys[row][0] in job.found.needles.ids)
                table = pa.Table.from_batches([batch])
                rest = table if len(stays) == len(table) else take_rows(table, stays)
                for chunk in (chunk for column in rest.columns for chunk in column.chunks):
                    shared.update(search.in_values(chunk))
    return shared, stay
