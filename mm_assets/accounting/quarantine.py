"""Quarantine: the faulty items of a shard, each with its class, its message and its raw bytes, as one table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting.raw_bytes import MAX_DAMAGED_RANGE_BYTES, RawFiles, RawLocation, in_batches
from mm_assets.formats.parquet_file import UnreadableFile, read_small_table
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
_NAME = ["sample_id", "position", "modality", "source_uri", "member"]
_OF_RANGE = f"its first bytes, {MAX_DAMAGED_RANGE_BYTES} at most"
_OF_SAMPLE = "the document of its sample: the item has no bytes of its own"
_OF_ROW = "the values of its row, but for bytes"
_OF_NOBODY = "it has no bytes of its own, and the document of its sample is not in quarantine"


def quarantine_table(
    losses: pa.Table, raw_files: Sequence[str], roots: Sequence[str], options: StorageOptions | None = None
) -> pa.Table:
    """One record per quarantined item that is itself at fault, and per damaged range, in
    `QUARANTINE_SCHEMA`.

    ``losses`` are the ledger's items of one shard, ``raw_files`` the shard's files, ``roots`` the folders
    that locators are relative to. ``raw`` is what lies at the item's place: the JSON text, the image (the
    whole TIFF of a frame), the first bytes of a damaged range; for an item without a place of its own, such
    as a missing member, the JSON of its sample, which ``byte_offset`` and ``byte_size`` then locate; of a row
    of a Parquet file, and of its items, the values of the row as JSON. Where that cannot be had (see
    `RawFiles.read` for the bounds) it is null, and ``raw_note`` says why. No other file is read, whatever a
    locator names.
    """
    quarantined = losses.filter(pc.equal(losses.column("outcome"), "quarantined"))
    records = quarantined.filter(quarantined.column("is_cause")).to_pylist()
    files = RawFiles(raw_files, roots, options)
    for record in records:
        record["source"] = record["source"] or files.only_name
    documents = _documents(quarantined)
    places: list[RawLocation | None] = []
    first_of: dict[
        RawLocation, int
    ] = {}  # the position of the first faulty frame of a TIFF, or item of a row, whose record holds what all share
    for record in records:
        place, record["raw_note"] = _place(record, documents, files)
        if place is not None and place.row is not None:
            if (first := first_of.setdefault(place, record["position"])) != record["position"]:
                place, record["raw_note"] = None, f"the same row as of position {first}: see there"
        elif place is not None and (record["frame_index"] is None or record["byte_offset"] is None):
            record |= {"source": place.source, "byte_offset": place.offset, "byte_size": place.size}
        elif (
            place is not None
            and (first := first_of.setdefault(place, record["position"])) != record["position"]
        ):
            place, record["raw_note"] = None, f"a frame of the same file as position {first}: see there"
        places.append(place)
    found = files.read(places)
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
    """Publish the records of a shard in one atomic step and return the bytes of the file; without any, remove
    it and return 0.
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
    """What tells the published records of a shard from each other, whatever offsets a mended file has; none
    without a file.

    A damaged file is logged and counts as none: it is made again from the ledger.
    """
    if not exists(uri, options):
        return frozenset()
    try:
        return frozenset(tuple(row.values()) for row in read_small_table(uri, _NAME, options).to_pylist())
    except UnreadableFile as error:
        log.warning("%s; it is made again", error)
        return frozenset()


def _place(
    record: Mapping[str, Any], documents: Mapping[str, RawLocation | None], files: RawFiles
) -> tuple[RawLocation | None, str | None]:
    """Where the bytes of a record lie, and a remark on them."""
    if (row := files.row_place(record["source"], record["member"])) is not None:
        return row, _OF_ROW
    offset, size = record["byte_offset"], record["byte_size"]
    if record["position"] is None:
        return RawLocation(
            record["source"], offset or 0, size, is_member=False, is_damaged_range=True
        ), _OF_RANGE
    if offset is not None and size is not None:
        return _of(record), None
    document = documents.get(record["sample_id"])
    return document, _OF_NOBODY if document is None else _OF_SAMPLE


def _documents(quarantined: pa.Table) -> dict[str, RawLocation | None]:
    """Where the JSON of each sample lies that went into quarantine with an item of it; None for an id that
    several such have.
    """
    documents: dict[str, RawLocation | None] = {}
    for row in quarantined.filter(pc.equal(quarantined.column("position"), METADATA_POSITION)).to_pylist():
        if (
            row["is_cause"] and row["kind"] != FETCH_FAILED
        ):  # no sample was made of it: who has its id is another
            continue
        if row["byte_offset"] is not None and row["byte_size"] is not None:
            place = _of(row)
            documents[row["sample_id"]] = place if documents.get(row["sample_id"], place) == place else None
    return documents


def _of(row: Mapping[str, Any]) -> RawLocation:
    return RawLocation(
        row["source"], row["byte_offset"], row["byte_size"], is_member=row["member"] is not None
    )


def _raw_array(found: memoryview | str | None) -> pa.Array:
    """One value over the very bytes that were read: a copy of all would double the memory they take."""
    if not isinstance(found, memoryview):
        return pa.nulls(1, pa.large_binary())
    offsets = pa.array([0, len(found)], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(found)])
