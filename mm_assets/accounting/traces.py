"""Traces of samples that are to be erased: where they are, and a scan of all files for what is left of them.

* `find` says which samples the entries of a deny list mean, and makes their `Needles`; `without_shared` takes
  out those that other samples have, too.
* `scan` reads each byte below some folders, and what is in containers: Parquet, Lance, Arrow, SQLite, packed
  files. It opens them with the libraries of our users, and shares no code with what writes them.
  `Scan.is_clean` is the proof of an erasure.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import lzma
import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Any, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from mm_assets.accounting import BY_ASSET, CURATED, DERIVED_FOLDERS, OUTPUTS, locator_columns
from mm_assets.accounting.accounts import LEDGER_FOLDER, Ledger
from mm_assets.accounting.erasures import MD5, PDQ, SAMPLE_ID, SHA256, URL, Denial, DenyList, Entry
from mm_assets.accounting.lookup import open_parquet
from mm_assets.accounting.needles import Found, FoundSample, Needles, NeedleSearch, Occurrence, Scan
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.filters.known_hashes import KnownHashes
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UnreadableFile, read_small_table
from mm_assets.formats.registry import reader_for
from mm_assets.model.errors import INCOMPLETE_SAMPLE
from mm_assets.model.nested_types import is_text, take_rows
from mm_assets.model.schema import METADATA_POSITION
from mm_assets.pool import MapsJobs, WorkerFailure
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import (
    StorageOptions,
    exists,
    is_remote,
    join,
    open_binary,
    size_of,
)
from mm_assets.storage.listing import sizes_below
from mm_assets.storage.stamps import parallel_map, stat_outputs

_HASHES = (SHA256, MD5, PDQ)
_SCORES = "image_scores"
_LOCATED = ["sample_id", "position", "modality", "source_ref"]
_CHUNK = 8 << 20
_PART = 256 << 20  # of a large file, which several workers read
_JOB, _FILES_A_JOB = 64 << 20, 500
_SMALL = 1 << 20  # such files are read at once, in a store several at a time
_BATCH = 8 << 20
_ROWS_AT_ONCE = 1000
_BEGIN_OF_STREAM, _HEADER = b"\xff\xff\xff\xff", 1 << 20
_OF_LEDGER = f"/{LEDGER_FOLDER}/"  # there metadata have accounts and surveys as JSON
# Columns of ids in our tables, and in the files of an index that Lance makes of such a column.
_ID_COLUMNS = ("sample_id", "values", "min", "max")


@dataclass(frozen=True)
class _ShardJob:
    root: str
    partition: str
    options: StorageOptions | None
    deny: DenyList = field(default_factory=DenyList)
    found: Found = field(default_factory=lambda: Found((), Needles()))
    stale: frozenset[str] = frozenset()

    def entries(self, *kinds: str) -> dict[Entry, Denial]:
        """Return the entries of some kinds."""
        return {entry: denial for entry, denial in self.deny.entries.items() if entry.kind in kinds}

    def parquet(self, folder: str) -> str:
        """Return the location of the shard's file in a folder of the storage root."""
        return join(self.root, folder, f"{partition_filename(self.partition)}.parquet")


def find(
    root: str,
    deny: DenyList,
    pool: MapsJobs,
    options: StorageOptions | None = None,
    stale: Mapping[str, frozenset[str]] | None = None,
) -> Found:
    """Find the samples of a storage root that a deny list means.

    Curated rows, quarantine, accounts and surveys are looked through: lost samples are found, too. What is
    made of the curated rows that are there has no others, and is not read; what is stale is. Images are read
    only where stored scores do not tell their hashes. Earlier versions of the table are not looked through.

    Args:
        root: storage root.
        deny: what is looked for.
        pool: does the work.
        options: for the file system.
        stale: what `stale_outputs` returns; None: found here.

    Raises:
        OSError: a shard cannot be looked through; the message names it.
    """
    stale = stale_outputs(root, options) if stale is None else stale
    each = _of_shards(pool, _find_in_shard, root, options, stale, deny=deny)
    samples = (sample for found in each for sample in found.samples)
    return Found.of(samples, (found.needles for found in each))


def without_shared(root: str, found: Found, pool: MapsJobs, options: StorageOptions | None = None) -> Needles:
    """Return the needles that no other curated row or quarantine record of the storage root has.

    Nor has one of these any of the ids that are left. Raises as `find`, which has to come first: after the
    erasure nobody knows what the others are.
    """
    each = _of_shards(pool, _shared_in_shard, root, options, found=found)
    shared = {number for numbers, _ in each for number in numbers}
    ids = {sample_id for _, stay in each for sample_id in stay}
    shards = _partitions(root, options)
    names = {name for shard in shards for name in (shard, shard.rpartition("/")[2])}
    return found.needles.without(shared, "other samples have it, too", ids, names)


def _partitions(root: str, options: StorageOptions | None) -> set[str]:
    return {*SurveyStore(root, options).partitions(), *Ledger(root, options).named(CURATED.asset)}


def stale_outputs(root: str, options: StorageOptions | None = None) -> dict[str, frozenset[str]]:
    """Return the assets whose output of a shard may have rows that its curated output has not, by shard.

    Every shard is named of which there is a survey or an account. That of a killed run may be an earlier one.
    """
    ledger = Ledger(root, options)
    assets = (*BY_ASSET, *DERIVED_FOLDERS)
    named = {name for asset in assets for name in ledger.named(asset)}
    partitions = sorted({*SurveyStore(root, options).partitions(), *named})
    records = {asset: ledger.records(asset, partitions) for asset in assets}
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
    options: StorageOptions | None,
    stale: Mapping[str, frozenset[str]] | None = None,
    **given: Any,
) -> list[Any]:
    if stale is None:
        stale = dict.fromkeys(_partitions(root, options), frozenset())
    jobs = [_ShardJob(root, name, options, stale=stale[name], **given) for name in sorted(stale)]
    results = []
    for job, result in pool.map(work, jobs):
        if isinstance(result, WorkerFailure):
            raise OSError(result.at(f"shard {job.partition!r}"))
        results.append(result)
    return results


def _find_in_shard(job: _ShardJob) -> Found:
    denied: list[FoundSample] = []
    needles: list[Needles] = []

    def add(row: dict[str, Any], is_whole: bool, is_past: bool = False) -> None:
        denied.append(FoundSample.of_row(job.partition, row, is_whole=is_whole, is_past=is_past))

    for found, is_past in ((_denied_rows(job), False), (_stale_rows(job), True)):
        for rows, is_whole in found:
            needles.append(Needles.of(rows, is_whole=is_whole))
            for row in rows.select(_LOCATED).to_pylist():
                add(row | locator_columns(row["source_ref"]), is_whole, is_past)
    names = ["sample_id", "position", "modality", "source_uri", "member", "raw"]
    quarantined = _rows(job.parquet(DERIVED_FOLDERS["quarantine"]), names, job)
    for row in quarantined:
        raw, is_hidden = row["raw"], job.deny.hides_sample(row["sample_id"] or "")
        is_denied = raw is not None and job.deny.hides_bytes(raw)
        if is_hidden or is_denied:
            # A document, unlike an image, is that of the whole sample.
            is_whole = row["sample_id"] is not None and (is_hidden or raw[:1] == b"{")
            ids = [row["sample_id"]] if is_whole else []
            needles.append(Needles.of_values([] if raw is None else [raw], ids))
            add(row | {"source": row["source_uri"]}, is_whole)
    if job.entries(URL) and (dropped := _dropped_documents(job, quarantined)):
        needles.append(Needles(omitted={f"{URL}, in documents of samples that ingest dropped": dropped}))
    survey = SurveyStore(job.root, job.options).uri(job.partition)
    of_document: dict[str, Any] = {"position": METADATA_POSITION, "modality": "metadata"}
    known = [of_document | row for row in _rows(survey, ["sample_id", "source", "member"], job)]
    ledger = Ledger(job.root, job.options)
    for asset in sorted(job.stale | {CURATED.asset} if job.entries(SAMPLE_ID) else ()):
        known += ledger.items(asset, job.partition).to_pylist()
        if asset in DERIVED_FOLDERS:
            stale = _rows(job.parquet(DERIVED_FOLDERS[asset]), ["sample_id"], job)
            known += [of_document | row for row in stale]
    for row in known:
        if row["sample_id"] is not None and job.deny.hides_sample(row["sample_id"]):
            needles.append(Needles.of_values([], [row["sample_id"]]))
            add(row, is_whole=True)
    return Found.of(denied, needles)


def _dropped_documents(job: _ShardJob, quarantined: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of samples that were dropped for an item, and of whose document nothing is kept."""
    items = Ledger(job.root, job.options).items(CURATED.asset, job.partition)
    is_one = pc.and_(pc.equal(items["modality"], "metadata"), pc.equal(items["kind"], INCOMPLETE_SAMPLE))
    kept = {row["sample_id"] for row in quarantined if (row["raw"] or b"")[:1] == b"{"}
    return len(set(items["sample_id"].filter(is_one).to_pylist()) - kept)


def _denied_rows(job: _ShardJob) -> Iterator[tuple[pa.Table, bool]]:
    """Yield denied rows of the curated output, and whether they are whole samples."""
    uri = CURATED.uri(job.root, job.partition)
    if not exists(uri, job.options):
        return
    of_images, others = DenyList(job.entries(*_HASHES)), DenyList(job.entries(SAMPLE_ID, URL))
    likely = _likely_samples(job, of_images)
    with open_parquet(uri, job.options) as file:
        names = [name for name in file.schema_arrow.names if name != "binary_content"]
        names = names if job.entries(URL) else _LOCATED
        for group in range(file.metadata.num_row_groups):  # each has whole samples
            table = file.read_row_group(group, columns=names, use_threads=False)
            denials = others.denials(table)
            ids = table.column("sample_id").to_pylist()
            has_likely = bool(of_images) and (likely is None or not likely.isdisjoint(ids))
            if not denials and not has_likely:
                continue
            table = file.read_row_group(group, use_threads=False)
            if has_likely:
                denials = {**of_images.denials(table, (), job.options), **denials}
            yield from rows_denied(table, denials)


def _stale_rows(job: _ShardJob) -> Iterator[tuple[pa.Table, bool]]:
    """Yield denied rows of outputs that may have others than the curated one; the table is not read."""
    for output in OUTPUTS:
        place = output.place(job.root, job.partition)
        is_read = output is not CURATED and not output.format.is_table and output.asset in job.stale
        if is_read and exists(output.uri(job.root, job.partition), job.options):
            reader = reader_for(output.kind, place, max_batch_bytes=_BATCH, storage_options=job.options)
            for batch in reader:
                yield from rows_denied(batch.data, job.deny.denials(batch.data, (), job.options))


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
    ledger = Ledger(job.root, job.options)
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
        scores = _rows(job.parquet(DERIVED_FOLDERS[_SCORES]), ["sample_id", *names], job)
    except UnreadableFile:
        return None  # or these were not measured

    digests = {entry.value for entry in deny.entries if entry.kind == SHA256}
    pictures = [entry for entry in deny.entries if entry.kind == PDQ]
    known = KnownHashes([entry.value for entry in pictures], [entry.radius for entry in pictures])

    def is_likely(kind: str, score: str | None) -> bool:
        return score is None or (score in digests if kind == SHA256 else known.nearest(score) is not None)

    return {row["sample_id"] for row in scores if any(is_likely(kind, row[of_kind[kind]]) for kind in kinds)}


def _rows(uri: str, columns: list[str], job: _ShardJob) -> list[dict[str, Any]]:
    if not exists(uri, job.options):
        return []
    return read_small_table(uri, columns, job.options).to_pylist()


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
        if not exists(uri, job.options):
            continue
        with open_parquet(uri, job.options) as file:
            for batch in _batches(file, None):
                keys = [*zip(*(batch.column(name).to_pylist() for name in _LOCATED[:3]), strict=True)]
                stays = [row for row, key in enumerate(keys) if key[0] not in whole and key not in items]
                stay.update(keys[row][0] for row in stays if keys[row][0] in job.found.needles.ids)
                table = pa.Table.from_batches([batch])
                rest = table if len(stays) == len(table) else take_rows(table, stays)
                for chunk in (chunk for column in rest.columns for chunk in column.chunks):
                    shared.update(search.in_values(chunk))
    return shared, stay


class _Part(NamedTuple):
    """Bytes of a file; the part that begins it has what the file contains, too."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True)
class _ScanJob:
    parts: tuple[_Part, ...]
    needles: Needles
    options: StorageOptions | None


def scan(
    folders: Iterable[str],
    needles: Needles,
    pool: MapsJobs,
    skip: Collection[str] = (),
    options: StorageOptions | None = None,
) -> Scan:
    """Look for needles in every file below folders or URLs, those behind links included.

    Args:
        folders: such as the storage root and Dagster's home. One that does not exist has no files.
        needles: what to look for.
        pool: does the work.
        skip: files to leave out.
        options: for the file systems.
    """
    search = needles.search()
    hits: Counter[Occurrence] = Counter()
    unread: dict[str, str] = {}
    sizes = sizes_below(folders, skip, unread, options)
    for path in sizes:
        for number, _ in search.find(f"{path}\n{unquote(path)}".encode("utf-8", "surrogateescape")):
            hits[Occurrence(path, "name", needles.needles[number].kind)] += 1
    for job, result in pool.map(_scan_parts, _scan_jobs(sizes, needles, options)):
        if isinstance(result, WorkerFailure):
            unread.update((part.path, result.message) for part in job.parts)
        else:
            hits.update(result[0])
            unread.update(result[1])
    found = dict(sorted(hits.items()))
    return Scan(len(sizes), sum(sizes.values()), found, unread, needles.counts(), needles.not_looked_for())


def _scan_jobs(
    sizes: Mapping[str, int], needles: Needles, options: StorageOptions | None
) -> Iterator[_ScanJob]:
    overlap = max(needles.search().longest - 1, 0)
    parts: list[_Part] = []
    filled = 0
    for path, size in sizes.items():
        for start in range(0, max(size, 1), _PART):
            parts.append(_Part(path, start, min(start + _PART + overlap, size)))
            filled += parts[-1].stop - start
            if filled >= _JOB or len(parts) >= _FILES_A_JOB:
                yield _ScanJob(tuple(parts), needles, options)
                parts, filled = [], 0
    if parts:
        yield _ScanJob(tuple(parts), needles, options)


def _scan_parts(job: _ScanJob) -> tuple[Counter[Occurrence], dict[str, str]]:
    """Return what parts of files hold, and why some could not be read."""
    search = job.needles.search()

    def scanned(part: _Part) -> tuple[Counter[Occurrence], str]:
        file = _ScannedFile(part.path, job.needles, search, job.options)
        try:
            file.search(part)
        except FileNotFoundError:
            pass  # removed since it was listed
        # Damaged containers and stores raise errors of any class; each is told.
        except Exception as error:  # noqa: BLE001
            return file.hits, error_line(error)
        return file.hits, ""

    small = [part for part in job.parts if part.stop <= _SMALL]
    large = [part for part in job.parts if part.stop > _SMALL]
    found = [*parallel_map(scanned, small, job.parts[0].path), *map(scanned, large)]
    hits: Counter[Occurrence] = Counter()
    for of_part, _ in found:
        hits.update(of_part)
    problems = zip([*small, *large], found, strict=True)
    return hits, {part.path: problem for part, (_, problem) in problems if problem}


class _ScannedFile:
    """A file that is searched, as bytes and for what it contains; ``hits`` has what was found."""

    def __init__(
        self, path: str, needles: Needles, search: NeedleSearch, options: StorageOptions | None
    ) -> None:
        self.hits: Counter[Occurrence] = Counter()
        self._path = path
        self._needles = needles
        self._search = search
        self._options = options

    def search(self, part: _Part) -> None:
        with open_binary(self._path, self._options) as opened:
            file = BytesIO(opened.read()) if part.stop <= _SMALL else opened
            file.seek(part.start)
            self._stream(lambda nbytes: file.read(min(nbytes, part.stop - file.tell())), "")
            if part.start == 0:
                self._inside(file)

    def _inside(self, file: IO[bytes]) -> None:
        file.seek(0)
        head = file.read(16)
        file.seek(0)
        if head.startswith(b"PAR1"):
            is_read = isinstance(file, BytesIO)
            with pq.ParquetFile(file) if is_read else open_parquet(self._path, self._options) as parquet:
                self._metadata(parquet.metadata.metadata)
                for batch in _batches(parquet, _is_packed):
                    self._batch(batch)
        elif head.startswith(b"ARROW1"):
            with pa.ipc.open_file(file) as reader:
                self._metadata(reader.schema.metadata)
                for number in range(reader.num_record_batches):
                    self._batch(reader.get_batch(number))
        elif self._path.endswith(".arrow"):  # a stream, as the records of our Lance tables have, too
            file.seek(max(0, file.read(_HEADER).find(_BEGIN_OF_STREAM)))
            with pa.ipc.open_stream(file) as reader:
                self._metadata(reader.schema.metadata)
                for batch in reader:
                    self._batch(batch)
        elif head.startswith(b"SQLite format 3\0") and not is_remote(self._path):
            self._sqlite()
        elif self._path.endswith(".lance"):
            self._lance()
        else:
            for unpacked in (opened(file) for magic, opened in _PACKED.items() if head.startswith(magic)):
                with unpacked:
                    self._stream(unpacked.read, "unpacked")

    def _stream(self, read: Callable[[int], bytes], inside: str) -> None:
        kept = b""
        while chunk := read(_CHUNK):
            data = kept + chunk
            for number, start in self._search.find(data):
                if start + len(self._search.needles[number]) > len(kept):
                    self._hit(number, inside)
            kept = data[max(0, len(data) - self._search.longest + 1) :]

    def _hit(self, number: int, inside: str) -> None:
        self.hits[Occurrence(self._path, inside, self._needles.needles[number].kind)] += 1

    def _metadata(self, metadata: Mapping[bytes, bytes] | None) -> None:
        """Search the metadata of a schema; those of Parquet have a schema in base64, with metadata again."""
        for key, value in (metadata or {}).items():
            inside = f"metadata {key.decode(errors='replace')}"
            is_schema = key == b"ARROW:schema"
            data = base64.b64decode(value) if is_schema else value
            for number, _ in self._search.find(data):
                self._hit(number, inside)
            if is_schema:
                self._metadata(pa.ipc.read_schema(pa.py_buffer(data)).metadata)
            elif _OF_LEDGER in self._path:
                self._names([data], inside)

    def _lance(self) -> None:
        """Search all rows of a file of a table, whichever versions have them, and deleted ones."""
        from lance.file import LanceFileReader

        from mm_assets.formats.lance.reader_writer import lance_options

        reader = LanceFileReader(self._path, lance_options(self._path, self._options))
        self._metadata(reader.metadata().schema.metadata)
        # Range by range: the reader fetches all of what it is asked for ahead.
        rows = reader.num_rows()
        at_once = _rows_at_once(size_of(self._path, self._options), rows)
        for start in range(0, rows, at_once):
            for batch in reader.read_range(start, min(at_once, rows - start)).to_batches():
                self._batch(batch)

    def _batch(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for number in self._search.in_values(column):
                self._hit(number, f"column {name}")
            if name in _ID_COLUMNS and self._needles.ids and is_text(column.type):
                is_one = pc.is_in(column, pa.array(sorted(self._needles.ids), column.type))
                if times := pc.sum(is_one).as_py():
                    self.hits[Occurrence(self._path, f"column {name}", SAMPLE_ID)] += times

    def _sqlite(self) -> None:
        """Search the rows of a database; deleted ones are among its bytes, as far as they are there."""
        log = f"{self._path}-wal"
        has_log = os.path.exists(log) and os.path.getsize(log) > 0
        # Opened any other way, a database without a log gets one.
        uri = f"file:{quote(os.path.abspath(self._path))}?{'mode=ro' if has_log else 'immutable=1'}"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.text_factory = bytes
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                table = name.decode()
                quoted = table.replace('"', '""')
                rows = database.execute(f'SELECT * FROM "{quoted}"')
                while some := rows.fetchmany(_ROWS_AT_ONCE):
                    values = [_inflated(value) for row in some for value in row if isinstance(value, bytes)]
                    for number in self._search.in_values(pa.array(values, pa.large_binary())):
                        self._hit(number, f"table {table}")
                    self._names(values, f"table {table}")

    def _names(self, values: Iterable[bytes], inside: str) -> None:
        """Search JSON for whole texts that are short ids, or names with one."""
        for value in values if self._needles.short else ():
            if value[:1] in (b"{", b"[") and self._needles.names(value.decode("utf-8", "replace")):
                self.hits[Occurrence(self._path, inside, SAMPLE_ID)] += 1


# What other programs pack files with, by the bytes that these begin with.
_PACKED: Mapping[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda file: pa.CompressedInputStream(file, "zstd"),
    b"\x04\x22\x4d\x18": lambda file: pa.CompressedInputStream(file, "lz4"),
}


def _inflated(value: bytes) -> bytes:
    """Return what zlib has packed, as Dagster does snapshots of jobs; anything else as it is."""
    try:
        return zlib.decompressobj().decompress(value, _CHUNK) if value[:1] == b"x" else value
    except zlib.error:
        return value


def _is_packed(chunk: pq.ColumnChunkMetaData) -> bool:
    if chunk.path_in_schema in _ID_COLUMNS:
        return True
    return chunk.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and (
        chunk.compression != "UNCOMPRESSED" or not {"PLAIN", "RLE", "BIT_PACKED"}.issuperset(chunk.encodings)
    )


def _batches(
    file: pq.ParquetFile, is_wanted: Callable[[pq.ColumnChunkMetaData], bool] | None
) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet file in batches of about `_BATCH` bytes: all columns, or chunks that are wanted."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [group.column(at) for at in range(group.num_columns)]
        chunks = [chunk for chunk in chunks if is_wanted is None or is_wanted(chunk)]
        if chunks:
            rows = _rows_at_once(sum(chunk.total_uncompressed_size for chunk in chunks), group.num_rows)
            names = [chunk.path_in_schema for chunk in chunks]
            yield from file.iter_batches(rows, row_groups=[number], columns=names, use_threads=False)


def _rows_at_once(nbytes: int, rows: int) -> int:
    return max(1, min(_BATCH * rows // max(nbytes, 1), 1 << 16))
