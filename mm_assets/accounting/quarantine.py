"""Quarantine: a table of the faulty items of a shard, each with its kind of fault, message and raw bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting.raw_bytes import MAX_DAMAGED_RANGE_BYTES, RawFiles, RawLocation, in_batches
from mm_assets.formats.parquet_file import UnreadableFile, read_small_table
from mm_assets.formats.pdf.names import is_block
from mm_assets.formats.storage import StorageOptions, exists, remove, staged
from mm_assets.interleaved.faults import FETCH_FAILED
from mm_assets.interleaved.schema import METADATA_POSITION

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
_NO_BYTES_NOTE = "it has no bytes of its own, and the document of its sample is not in quarantine"


def quarantine_table(
    losses: pa.Table, raw_files: Sequence[str], roots: Sequence[str], options: StorageOptions | None = None
) -> pa.Table:
    """Return one record per faulty item in quarantine, and per damaged range, in `QUARANTINE_SCHEMA`.

    ``raw`` has the bytes at the item's location: the JSON text, the image (for a frame the whole TIFF), or
    the first bytes of a damaged range. An item without bytes of its own, such as a missing member, gets the
    JSON of its sample, which ``byte_offset`` and ``byte_size`` then locate. A row of a Parquet file, and its
    items, get the values of the row as JSON. If the bytes cannot be read (see `RawFiles.read` for the
    limits), ``raw`` is null and ``raw_note`` says why. No other file is read, whatever a locator names.

    Args:
        losses: the ledger's items of one shard.
        raw_files: the files of the raw shard.
        roots: folders that locators are relative to.
        options: for the file systems.
    """
    quarantined = losses.filter(pc.equal(losses.column("outcome"), "quarantined"))
    records = quarantined.filter(quarantined.column("is_cause")).to_pylist()
    files = RawFiles(raw_files, roots, options)
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
    for record, result in zip(records, found, strict=True):
        record |= {"message": record["reason"], "source_uri": record["source"]}
        if isinstance(result, str):
            record["raw_note"] = result
    raw = pa.chunked_array([_raw_array(result) for result in found], pa.large_binary())
    columns = [
        raw if f.name == "raw" else pa.array([r[f.name] for r in records], f.type) for f in QUARANTINE_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)


def publish_quarantine(uri: str, table: pa.Table, options: StorageOptions | None = None) -> int:
    """Publish the records of a shard in one step; without any, remove the file.

    Returns:
        Bytes of the file; 0 without records.
    """
    if table.num_rows == 0:
        remove(uri, options)
        return 0
    sizes = pc.fill_null(pc.binary_length(table.column("raw")), 0).to_pylist()
    with staged(uri, options) as file:
        with pq.ParquetWriter(
            file.path, QUARANTINE_SCHEMA, compression="zstd", use_dictionary=["partition", "kind"]
        ) as writer:
            for rows in in_batches(range(table.num_rows), sizes.__getitem__):
                writer.write_table(table.slice(rows[0], len(rows)))
        return file.publish()


def record_names(uri: str, options: StorageOptions | None = None) -> frozenset[tuple[Any, ...]]:
    """Return the key columns of a shard's published records; none without a file.

    The keys stay the same when a repaired file has other offsets. A damaged file is logged and counts as
    none: it is made again from the ledger.
    """
    if not exists(uri, options):
        return frozenset()
    try:
        return frozenset(
            tuple(row.values()) for row in read_small_table(uri, _KEY_COLUMNS, options).to_pylist()
        )
    except UnreadableFile as error:
        log.warning("%s; it is made again", error)
        return frozenset()


def _location(
    record: Mapping[str, Any], documents: Mapping[str, RawLocation | None], files: RawFiles
) -> tuple[RawLocation | None, str | None]:
    """Return the location of a record's bytes, and a note on them."""
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
    is_member = row["member"] is not None and not is_block(row["member"])
    return RawLocation(row["source"], row["byte_offset"], row["byte_size"], is_member=is_member)


def _raw_array(found: memoryview | str | None) -> pa.Array:
    """Return one value over the bytes that were read, without a copy, which would double their memory."""
    if not isinstance(found, memoryview):
        return pa.nulls(1, pa.large_binary())
    offsets = pa.array([0, len(found)], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(found)])
