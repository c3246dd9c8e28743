"""Scan of every file for what needles are of: the proof of an erasure.

`scan` reads each byte below some folders, and what is in containers: Parquet, Lance, Arrow, SQLite, packed
files. It opens them with the libraries of our users, and shares no code with what writes them.
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

from mm_assets.accounting import LEDGER_FOLDER
from mm_assets.accounting.erasures import SAMPLE_ID
from mm_assets.accounting.needles import Needles, NeedleSearch
from mm_assets.formats.parquet import parquet_file
from mm_assets.model.nested_types import is_text
from mm_assets.pool import MapsJobs, WorkerFailure
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import exists, is_remote, open_binary
from mm_assets.storage.listing import sizes_below
from mm_assets.storage.small_files import small_object
from mm_assets.storage.stamps import parallel_map

_CHUNK = 8 << 20
_PART = 256 << 20  # of a large file, which several workers read
_JOB, _FILES_A_JOB = 64 << 20, 500
_SMALL = 1 << 20  # such files are read at once, in a store several at a time
BATCH_BYTES = 8 << 20
_ROWS_AT_ONCE = 1000
_BEGIN_OF_STREAM, _HEADER = b"\xff\xff\xff\xff", 1 << 20
_OF_LEDGER = f"/{LEDGER_FOLDER}/"  # there metadata have accounts and surveys as JSON
# Columns of ids in our tables, and in the files of an index that Lance makes of such a column.
_ID_COLUMNS = ("sample_id", "values", "min", "max")


class Occurrence(NamedTuple):
    """Something that a file holds, by its kind.

    ``inside`` names the part of the file: a column, a table, ``unpacked``, or its ``name``; it is empty for
    the bytes of the file as they are.
    """

    path: str
    inside: str
    kind: str


@dataclass(frozen=True)
class Scan:
    """What a scan has read and found.

    Attributes:
        files: number of files.
        nbytes: their bytes.
        occurrences: how often each was found.
        unread: files that could not be read, or not be unpacked, each with the reason.
        searched_for: numbers of contents by kind.
        omitted: numbers of contents that were not looked for, by kind and reason.
    """

    files: int
    nbytes: int
    occurrences: Mapping[Occurrence, int]
    unread: Mapping[str, str] = field(default_factory=dict)
    searched_for: Mapping[str, int] = field(default_factory=dict)
    omitted: Mapping[str, int] = field(default_factory=dict)

    def paths(self) -> list[str]:
        """Return the files in which something was found, sorted."""
        return sorted({found.path for found in self.occurrences})


class _Part(NamedTuple):
    """Bytes of a file; the part that begins it has what the file contains, too."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True)
class _ScanJob:
    parts: tuple[_Part, ...]
    needles: Needles


def scan(
    folders: Iterable[str],
    needles: Needles,
    pool: MapsJobs,
    skip: Collection[str] = (),
) -> Scan:
    """Look for needles in every file below folders or URLs, those behind links included.

    Args:
        folders: such as the storage root and Dagster's home. One that does not exist has no files.
        needles: what to look for.
        pool: does the work.
        skip: files to leave out.
    """
    search = needles.search()
    hits: Counter[Occurrence] = Counter()
    unread: dict[str, str] = {}
    sizes = sizes_below(folders, skip, unread)
    for path in sizes:
        for number, _ in search.find(f"{path}\n{unquote(path)}".encode("utf-8", "surrogateescape")):
            hits[Occurrence(path, "name", needles.needles[number].kind)] += 1
    for job, result in pool.map(_scan_parts, _scan_jobs(sizes, needles)):
        if isinstance(result, WorkerFailure):
            unread.update((part.path, result.message) for part in job.parts)
        else:
            hits.update(result[0])
            unread.update(result[1])
    found = dict(sorted(hits.items()))
    return Scan(len(sizes), sum(sizes.values()), found, unread, needles.counts(), needles.not_searched_for())


def _scan_jobs(sizes: Mapping[str, int], needles: Needles) -> Iterator[_ScanJob]:
    overlap = max(needles.search().longest - 1, 0)
    parts: list[_Part] = []
    filled = 0
    for path, size in sizes.items():
        for start in range(0, max(size, 1), _PART):
            parts.append(_Part(path, start, min(start + _PART + overlap, size)))
            filled += parts[-1].stop - start
            if filled >= _JOB or len(parts) >= _FILES_A_JOB:
                yield _ScanJob(tuple(parts), needles)
                parts, filled = [], 0
    if parts:
        yield _ScanJob(tuple(parts), needles)


def _scan_parts(job: _ScanJob) -> tuple[Counter[Occurrence], dict[str, str]]:
    """Return what parts of files hold, and why some could not be read."""
    search = job.needles.search()

    def scanned(part: _Part) -> tuple[Counter[Occurrence], str]:
        file = _ScannedFile(part.path, job.needles, search)
        try:
            try:
                file.search(part)
            except FileNotFoundError:
                if exists(part.path):  # else it was removed since it was listed
                    raise
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


def _opened(part: _Part) -> IO[bytes]:
    """Open a file; one that is small is read at once."""
    if part.stop > _SMALL:
        return open_binary(part.path)
    data = small_object(part.path, part.stop)
    if data is not None:
        return BytesIO(data)
    with open_binary(part.path) as file:
        return BytesIO(file.read())


class _ScannedFile:
    """A file that is searched, as bytes and for what it contains; ``hits`` has what was found."""

    def __init__(self, path: str, needles: Needles, search: NeedleSearch) -> None:
        self.hits: Counter[Occurrence] = Counter()
        self._path = path
        self._needles = needles
        self._search = search

    def search(self, part: _Part) -> None:
        with _opened(part) as file:
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
            with pq.ParquetFile(file) if is_read else parquet_file(self._path) as parquet:
                self._metadata(parquet.metadata.metadata)
                for batch in batches_in(parquet, _is_packed):
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
            self._lance(file)
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

    def _lance(self, file: IO[bytes]) -> None:
        """Search all rows of a file of a table, whichever versions have them, and deleted ones."""
        nbytes = file.seek(0, os.SEEK_END)
        if not (is_remote(self._path) and isinstance(file, BytesIO) and hasattr(os, "memfd_create")):
            self._lance_rows(self._path, nbytes)
            return
        # Lance would make a client for each file of a store, which takes 10 ms.
        with open(os.memfd_create("lance"), "wb") as copy:
            copy.write(file.getbuffer())
            copy.flush()
            self._lance_rows(f"/dev/fd/{copy.fileno()}", nbytes)

    def _lance_rows(self, path: str, nbytes: int) -> None:
        from lance.file import LanceFileReader

        from mm_assets.formats.lance.reader_writer import lance_options

        reader = LanceFileReader(path, lance_options(path, None))
        self._metadata(reader.metadata().schema.metadata)
        # Range by range: the reader fetches all of what it is asked for ahead.
        rows = reader.num_rows()
        at_once = _rows_at_once(nbytes, rows)
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


def batches_in(
    file: pq.ParquetFile, is_wanted: Callable[[pq.ColumnChunkMetaData], bool] | None
) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet file in batches of about `BATCH_BYTES`: all columns, or chunks that are wanted."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [group.column(at) for at in range(group.num_columns)]
        chunks = [chunk for chunk in chunks if is_wanted is None or is_wanted(chunk)]
        if chunks:
            rows = _rows_at_once(sum(chunk.total_uncompressed_size for chunk in chunks), group.num_rows)
            names = [chunk.path_in_schema for chunk in chunks]
            yield from file.iter_batches(rows, row_groups=[number], columns=names, use_threads=False)


def _rows_at_once(nbytes: int, rows: int) -> int:
    return max(1, min(BATCH_BYTES * rows // max(nbytes, 1), 1 << 16))
