"""Quarantine: a table of the faulty items of a shard, each with its kind of fault, message and raw bytes.

`quarantine_table` makes the table from the ledger's lost items. `RawFiles` fetches the raw bytes. Their
locations come from the data, which may say anything, so only the files of the shard are read, and only up to
a limit.
"""

from __future__ import annotations

import logging
import os
import posixpath
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting import FileDigest, publish_digested
from mm_assets.accounting.erasures import DenyList
from mm_assets.formats.jsonl import lines_beside, stem_of
from mm_assets.formats.materialize import Request, open_fetcher
from mm_assets.formats.names import is_block, is_line, is_lines, is_parquet
from mm_assets.formats.parquet import UnreadableFile, read_small_table, row_of, rows_as_json
from mm_assets.formats.raw_shards import originals_of
from mm_assets.formats.tar import BLOCK, TarDamage, check_header, member_size
from mm_assets.formats.tar.spool import local_tar, unpacked_limit
from mm_assets.model.errors import DENIED, FETCH_FAILED, Fault
from mm_assets.model.schema import METADATA_POSITION
from mm_assets.storage.errors import is_store_failure
from mm_assets.storage.files import join, open_binary, remove, size_of, staged

Item = TypeVar("Item")

MAX_PLACE_BYTES = 16 << 20
MAX_SHARD_BYTES = 128 << 20  # held in the memory of a worker that may take 256 MiB in all
MAX_DAMAGED_RANGE_BYTES = 1 << 20  # enough to see what a damaged range contains
BATCH_BYTES = 16 << 20

Fetch = Callable[[Sequence[Request]], list[bytes | Fault]]

_UNPACKABLE = "the gzip file is damaged before these bytes"
_CHANGED = "the source has changed: no member of this size lies there any more"
_NO_ROW = "the source has changed: it has no such row any more"


@dataclass(frozen=True)
class RawLocation:
    """A location in a raw file: ``size`` bytes at ``offset`` of the unpacked file ``source``.

    Attributes:
        source: the file as locators call it.
        offset: in bytes.
        size: in bytes; None is up to the end of the file.
        is_member: the tar header in front must state the same size.
        is_damaged_range: only the first bytes are read.
        row: number of a Parquet row, whose values are read as JSON; it has no bytes of its own.
    """

    source: str | None
    offset: int
    size: int | None
    is_member: bool = True
    is_damaged_range: bool = False
    row: int | None = None


class RawFiles:
    """The files of one raw shard, under every name a locator may use: their own, or the path below a root."""

    def __init__(self, files: Sequence[str], roots: Sequence[str]) -> None:
        self._by_name = {file: file for file in files}
        for root in (root.rstrip("/") + "/" for root in roots):
            self._by_name.update({file.removeprefix(root): file for file in files if file.startswith(root)})
        self.only_name = min(self._by_name, key=len) if len(files) == 1 else None
        for file in files:
            self._by_name.update(originals_of(file))

    def _file_of(self, source: str | None) -> str | None:
        """Return the file that locators call ``source``; None where it does not belong to the shard.

        The tar with the images of JSON lines does, too.
        """
        if source is None or source in self._by_name:
            return self._by_name.get(source or "")
        stems = lines_beside(source)
        for name, file in list(self._by_name.items()):
            if is_lines(name) and stem_of(name) in stems:
                self._by_name[source] = join(posixpath.dirname(file), posixpath.basename(source))
        return self._by_name.get(source)

    def row_location(self, source: str | None, member: str | None) -> RawLocation | None:
        """Return the location of a Parquet row that a locator names, if the file belongs to the shard."""
        row = row_of(member)
        is_there = is_parquet(self._by_name.get(source or "", "")) and row is not None
        return RawLocation(source, 0, None, is_member=False, row=row) if is_there else None

    def read(self, locations: Sequence[RawLocation | None]) -> list[memoryview | str | None]:
        """Return for each location its bytes, or why they cannot be read; None for None.

        At most `MAX_PLACE_BYTES` of a location and `MAX_SHARD_BYTES` in all are read: anything larger, or
        later, is refused.
        """
        found: list[memoryview | str | None] = [None] * len(locations)
        by_file: dict[str, list[tuple[int, RawLocation]]] = defaultdict(list)
        bytes_read = self._read_rows(locations, found)
        for index, location in enumerate(locations):
            if location is None or location.row is not None:
                continue
            bounded = self._bounded(location)
            if isinstance(bounded, str):
                found[index] = bounded
            elif refusal := _refused(size := bounded.size or 0, bytes_read):
                found[index] = refusal
            elif size == 0:
                found[index] = memoryview(b"")
            else:
                bytes_read += size
                by_file[str(location.source)].append((index, bounded))
        for source, file_locations in by_file.items():
            self._read_file(source, file_locations, found)
        return found

    def _read_rows(
        self, locations: Sequence[RawLocation | None], found: list[memoryview | str | None]
    ) -> int:
        """Read the rows among the locations, and return how many bytes they take."""
        by_file: dict[str, dict[int, int]] = defaultdict(dict)
        for index, location in enumerate(locations):
            if location is not None and location.row is not None:
                by_file[str(location.source)][index] = location.row
        bytes_read = 0
        for source, rows in by_file.items():
            file = self._by_name[source]
            try:
                values = rows_as_json(file, set(rows.values()))
            # File systems raise errors of any class, and a record without bytes is still useful.
            except Exception as error:  # noqa: BLE001
                found[:] = [
                    self._message(error, file, source) if index in rows else known
                    for index, known in enumerate(found)
                ]
                continue
            for index, row in rows.items():
                size = len(values.get(row, b""))
                found[index] = (
                    _NO_ROW if row not in values else _refused(size, bytes_read) or memoryview(values[row])
                )
                bytes_read += 0 if isinstance(found[index], str) else size
        return bytes_read

    def _bounded(self, location: RawLocation) -> RawLocation | str:
        """Return the location with a size that may be read, or why there is none."""
        file = self._file_of(location.source)
        if file is None:
            return "not in a file of this shard"
        size = location.size
        if size is None:
            try:
                size = size_of(file) - location.offset
            except OSError as error:
                if is_store_failure(error):
                    raise
                return self._message(error, file, str(location.source))
        if location.is_damaged_range:
            size = min(size, MAX_DAMAGED_RANGE_BYTES)
            if size <= 0:
                return "nothing follows: the file ends here"
        if location.is_member and location.offset < BLOCK:
            return _CHANGED
        return RawLocation(
            location.source, location.offset, size, location.is_member, location.is_damaged_range
        )

    def _read_file(
        self, source: str, locations: Sequence[tuple[int, RawLocation]], found: list[memoryview | str | None]
    ) -> None:
        file = self._by_name[source]
        try:
            try:
                with open_fetcher(file, source) as fetcher:
                    _fill(fetcher.fetch, locations, found)
            except TarDamage:
                with _undamaged_start(file, source) as fetch:
                    _fill(fetch, locations, found)
        # File systems raise errors of any class, and a record without bytes is still useful.
        except Exception as error:
            if is_store_failure(error):  # the next run may find them
                raise
            for index, _ in locations:
                if found[index] is None:
                    found[index] = self._message(error, file, source)

    def _message(self, error: Exception, file: str, source: str) -> str:
        """Return an error's message with the file named as in the data: local paths are not published."""
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error).replace(file, source)
        return f"cannot be read: {reason}"


def _refused(size: int, bytes_read: int) -> str | None:
    """Return why bytes are not read when ``held`` bytes already are; None if they are."""
    if size > MAX_PLACE_BYTES:
        return f"{size} bytes are more than the {MAX_PLACE_BYTES} that are kept of one item"
    if bytes_read + size > MAX_SHARD_BYTES:
        return f"{size} bytes are more than are left of the {MAX_SHARD_BYTES} that are kept of a shard"
    return None


def in_batches(items: Sequence[Item], size_of_item: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield neighbouring items of at most `BATCH_BYTES` together; a larger one alone."""
    batch: list[Item] = []
    filled = 0
    for item in items:
        size = size_of_item(item)
        if batch and filled + size > BATCH_BYTES:
            yield batch
            batch, filled = [], 0
        batch.append(item)
        filled += size
    if batch:
        yield batch


def _fill(
    fetch: Fetch, locations: Sequence[tuple[int, RawLocation]], found: list[memoryview | str | None]
) -> None:
    for batch in in_batches(locations, lambda item: item[1].size or 0):
        before = [BLOCK if location.is_member else 0 for _, location in batch]
        requests = [
            (None, p.offset - skip, (p.size or 0) + skip) for (_, p), skip in zip(batch, before, strict=True)
        ]
        for (index, location), result in zip(batch, fetch(requests), strict=True):
            found[index] = (
                result.message
                if isinstance(result, Fault)
                else _payload(memoryview(result), location.is_member)
            )


@contextmanager
def _undamaged_start(file: str, name: str) -> Iterator[Fetch]:
    """Yield a function that reads ranges of a damaged gzip file, up to the damage."""

    def fetch(requests: Sequence[Request]) -> list[bytes | Fault]:
        ranges = [(offset or 0, size or 0) for _, offset, size in requests]
        results = [(os.pread(descriptor, size, offset), size) for offset, size in ranges]
        return [data if len(data) == size else Fault(FETCH_FAILED, _UNPACKABLE) for data, size in results]

    limit = unpacked_limit(size_of(file))
    with (
        open_binary(file) as stream,
        local_tar(stream, name, max_bytes=limit, damaged=[]) as descriptor,
    ):
        yield fetch


def _payload(data: memoryview, is_member: bool) -> memoryview | str:
    """Return the bytes after a tar header, if the header states exactly this size.

    In a file that was replaced, anything may be at this location.
    """
    if not is_member:
        return data
    header, data = bytes(data[:BLOCK]), data[BLOCK:]
    try:
        check_header(header, "", 0)
        return data if member_size(header, "", 0) == len(data) else _CHANGED
    except TarDamage:
        return _CHANGED


log = logging.getLogger(__name__)

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        pa.field("sample_id", pa.string()),
        pa.field("position", pa.int32()),
        pa.field("modality", pa.string()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("source_uri", pa.string()),
        pa.field("member", pa.string()),
        pa.field("byte_offset", pa.int64()),
        pa.field("byte_size", pa.int64()),
        pa.field("raw", pa.large_binary()),
        pa.field("raw_note", pa.string()),
    ]
)
_KEY_COLUMNS = ["sample_id", "position", "modality", "source_uri", "member"]
# Values of ``raw_note``.
_DAMAGED_RANGE_NOTE = f"its first bytes, {MAX_DAMAGED_RANGE_BYTES} at most"
_SAMPLE_NOTE = "the document of its sample: the item has no bytes of its own"
_ROW_NOTE = "the values of its row, but for bytes"
_DENIED_NOTE = "nothing of it is kept: it is denied"
_NO_BYTES_NOTE = "it has no bytes of its own, and the document of its sample is not in quarantine"


def quarantine_table(
    losses: pa.Table,
    raw_files: Sequence[str],
    roots: Sequence[str],
    deny: DenyList | None = None,
) -> pa.Table:
    """Return one record per faulty item in quarantine, and per damaged range, in `QUARANTINE_SCHEMA`.

    ``raw`` has the bytes at the item's location: the JSON text, the image (for a frame the whole TIFF), or
    the first bytes of a damaged range. An item without bytes of its own, such as a missing member, gets the
    JSON of its sample, which ``byte_offset`` and ``byte_size`` then locate. A row of a Parquet file, and its
    items, get the values of the row as JSON. If the bytes cannot be read (see `RawFiles.read` for the
    limits), or are denied, ``raw`` is null and ``raw_note`` says why. No other file is read, whatever a
    locator names.

    Args:
        losses: the ledger's items of one shard.
        raw_files: the files of the raw shard.
        roots: folders that locators are relative to.
        deny: what may not be kept for another fault either.
    """
    quarantined = losses.filter(pc.equal(losses.column("outcome"), "quarantined"))
    records = quarantined.filter(quarantined.column("is_cause")).to_pylist()
    files = RawFiles(raw_files, roots)
    for record in records:
        record["source"] = record["source"] or files.only_name
    documents = _documents(quarantined)
    locations: list[RawLocation | None] = []
    # The position of the first faulty frame of a TIFF, or item of a row: its record has the bytes of all.
    first_of: dict[RawLocation, int] = {}
    for record in records:
        location, record["raw_note"] = _location(record, documents, files)
        if location is not None and location.row is not None:
            if (first := first_of.setdefault(location, record["position"])) != record["position"]:
                location, record["raw_note"] = None, f"the same row as of position {first}: see there"
        elif location is not None and (record["frame_index"] is None or record["byte_offset"] is None):
            record |= {"source": location.source, "byte_offset": location.offset, "byte_size": location.size}
        elif (
            location is not None
            and (first := first_of.setdefault(location, record["position"])) != record["position"]
        ):
            location, record["raw_note"] = None, f"a frame of the same file as position {first}: see there"
        locations.append(location)
    found = files.read(locations)
    if deny:
        for number, data in enumerate(found):
            if isinstance(data, memoryview) and deny.hides_bytes(data):
                found[number] = _DENIED_NOTE
    for record, result in zip(records, found, strict=True):
        record |= {"message": record["reason"], "source_uri": record["source"]}
        if isinstance(result, str):
            record["raw_note"] = result
    raw = pa.chunked_array([_raw_array(result) for result in found], pa.large_binary())
    columns = [
        raw if f.name == "raw" else pa.array([r[f.name] for r in records], f.type) for f in QUARANTINE_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)


def publish_quarantine(uri: str, table: pa.Table, is_published: bool = True) -> FileDigest | None:
    """Publish the records of a shard in one step; without any, remove the file, if one ``is_published``.

    Returns:
        What `digest_files` tells of the file; None without records.
    """
    if table.num_rows == 0:
        if is_published:
            remove(uri)
        return None
    sizes = pc.fill_null(pc.binary_length(table.column("raw")), 0).to_pylist()
    with staged(uri) as file:
        with pq.ParquetWriter(
            file.path, QUARANTINE_SCHEMA, compression="zstd", use_dictionary=["partition", "kind"]
        ) as writer:
            for rows in in_batches(range(table.num_rows), sizes.__getitem__):
                writer.write_table(table.slice(rows[0], len(rows)))
        return publish_digested(file)


def record_names(uri: str) -> frozenset[tuple[Any, ...]] | None:
    """Return the key columns of a shard's published records; None without a file.

    The keys stay the same when a repaired file has other offsets. A damaged file is logged and counts as
    none: it is made again from the ledger.
    """
    try:
        return names_of(read_small_table(uri, _KEY_COLUMNS))
    except FileNotFoundError:
        return None
    except UnreadableFile as error:
        log.warning("%s; it is made again", error)
        return frozenset()


def names_of(records: pa.Table) -> frozenset[tuple[Any, ...]]:
    """Return the key columns of records, as `record_names` does."""
    return frozenset(tuple(row.values()) for row in records.select(_KEY_COLUMNS).to_pylist())


def _location(
    record: Mapping[str, Any], documents: Mapping[str, RawLocation | None], files: RawFiles
) -> tuple[RawLocation | None, str | None]:
    """Return the location of a record's bytes, and a note on them."""
    if record["kind"] in DENIED:
        return None, _DENIED_NOTE
    if (row := files.row_location(record["source"], record["member"])) is not None:
        return row, _ROW_NOTE
    offset, size = record["byte_offset"], record["byte_size"]
    if record["position"] is None:
        return RawLocation(
            record["source"], offset or 0, size, is_member=False, is_damaged_range=True
        ), _DAMAGED_RANGE_NOTE
    if offset is not None and size is not None:
        return _of(record), None
    document = documents.get(record["sample_id"])
    return document, _NO_BYTES_NOTE if document is None else _SAMPLE_NOTE


def _documents(quarantined: pa.Table) -> dict[str, RawLocation | None]:
    """Return the location of each quarantined sample's JSON; None for an id that several of them have."""
    documents: dict[str, RawLocation | None] = {}
    for row in quarantined.filter(pc.equal(quarantined.column("position"), METADATA_POSITION)).to_pylist():
        # A faulty document became no sample: any sample with its id is another one.
        if row["is_cause"] and row["kind"] != FETCH_FAILED:
            continue
        if row["byte_offset"] is not None and row["byte_size"] is not None:
            location = _of(row)
            documents[row["sample_id"]] = (
                location if documents.get(row["sample_id"], location) == location else None
            )
    return documents


def _of(row: Mapping[str, Any]) -> RawLocation:
    member = row["member"]
    is_member = member is not None and not is_block(member) and not is_line(member)
    return RawLocation(row["source"], row["byte_offset"], row["byte_size"], is_member=is_member)


def _raw_array(found: memoryview | str | None) -> pa.Array:
    """Return one value over the bytes that were read, without a copy, which would double their memory."""
    if not isinstance(found, memoryview):
        return pa.nulls(1, pa.large_binary())
    offsets = pa.array([0, len(found)], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(found)])
