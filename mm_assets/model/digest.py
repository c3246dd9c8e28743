"""Digests of items.

* `ContentDigest` does not depend on row order, batch boundaries or file format.
* `digest_faults` compares images with the digests that their documents declare.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mm_assets.model import json_codec
from mm_assets.model.errors import DataError, Fault, digest_mismatch
from mm_assets.model.json_codec import dumps, is_json
from mm_assets.model.nested_types import binary_views, plain_type

TEXTS, BLOBS = "text_content", "binary_content"
Blob = bytes | memoryview

_MODULUS = 1 << 128
_ROWS_AT_ONCE = 1 << 14  # a sample may have a million rows, and each row becomes a Python string to hash
_CONTENTS = {TEXTS: "text", BLOBS: "bytes"}  # long values: hashed in place, without a copy
_LARGE = (pa.large_string(), pa.large_binary())


class ContentDigest:
    """Sum modulo 2^128 of the `row_digests` of all rows.

    A sum rather than an XOR, so that two equal extra rows do not cancel out. It detects loss; it is no
    defence against an attacker.
    """

    def __init__(self) -> None:
        self._total = 0

    def observe(self, table: pa.Table, blobs: Iterable[Blob | None] | None = None) -> None:
        """Add the rows of a table (arguments as for `row_digests`)."""
        remaining = None if blobs is None else iter(blobs)
        for start in range(0, table.num_rows, _ROWS_AT_ONCE):
            self.add(row_digests(table.slice(start, _ROWS_AT_ONCE), remaining))

    def add(self, digests: Iterable[int]) -> None:
        """Add rows by their digests."""
        self._total = (self._total + sum(digests)) % _MODULUS

    def plus(self, other: ContentDigest) -> ContentDigest:
        """Return the digest of the rows of both."""
        result = ContentDigest()
        result._total = (self._total + other._total) % _MODULUS
        return result

    @classmethod
    def of(cls, hexdigest: str) -> ContentDigest:
        """Return the digest with this `hexdigest`."""
        result = cls()
        result._total = int(hexdigest, 16)
        return result

    def hexdigest(self) -> str:
        return f"{self._total:032x}"


def row_digests(table: pa.Table, blobs: Iterable[Blob | None] | None = None) -> list[int]:
    """Return one xxh3-128 digest per row, over every column's name, type and value; nulls are left out.

    The order of columns does not count, nor does a column without values, because formats and tables of many
    shards differ in these. The hashed head of a row lists its columns by name: each is
    ``<length>:<name><length>:<type>=`` followed by ``<length>:<text>`` or ``<number>;`` (lengths in
    characters; the head is UTF-8). For the columns in `_CONTENTS` the head has only the number of bytes; the
    bytes themselves follow at the end.

    Args:
        table: The rows.
        blobs: Values of the column `BLOBS`, for a table without it. Each is hashed before the next one is
            requested. The table's rows are the first of them; no more are consumed.

    Raises:
        ValueError: ``blobs`` has fewer values than the table has rows.
    """
    names = sorted(table.column_names)
    if blobs is None:
        blobs = _views(table, BLOBS)
        names = [name for name in names if name != BLOBS or not _is_content(table.schema.field(name))]
    befores, afters = (
        _heads(table, [name for name in names if (name <= BLOBS) == is_before]) for is_before in (True, False)
    )
    digests = []
    for before, after, text, blob in zip(
        befores, afters, _views(table, TEXTS), islice(blobs, table.num_rows), strict=True
    ):
        if blob is None:
            head = (before + after).encode("utf-8", "surrogatepass")
            digests.append(xxhash.xxh3_128_intdigest(head if text is None else head + text))
            continue
        digest = xxhash.xxh3_128(f"{before}{_BLOB_LABEL}{len(blob)};{after}".encode("utf-8", "surrogatepass"))
        if text is not None:
            digest.update(text)
        digest.update(blob)
        digests.append(digest.intdigest())
    return digests


def _views(table: pa.Table, name: str) -> list[memoryview | None]:
    if name not in table.column_names or not _is_content(table.schema.field(name)):
        return [None] * table.num_rows
    column = table.column(name)
    column = column.cast(pa.large_binary() if column.type in _LARGE else pa.binary())
    return [view for chunk in column.chunks for view in binary_views(chunk)]


def _is_content(field: pa.Field) -> bool:
    return field.name in _CONTENTS and field.type in (pa.string(), pa.binary(), *_LARGE)


def _heads(table: pa.Table, names: Sequence[str]) -> list[str]:
    """Return the part of each row's head that these columns make."""
    columns = []
    for name in names:
        column = table.column(name)
        if column.null_count < len(column):
            columns.append(_entries(column, table.schema.field(name)))
    if not columns:
        return [""] * table.num_rows
    return list(map("".join, zip(*columns, strict=True)))


def label(field: pa.Field) -> str:
    """Return the text before a value of this column in its row's head."""
    if _is_content(field):
        kind = _CONTENTS[field.name]
    else:
        kind = "json" if is_json(field) else str(plain_type(field.type))
    return f"{len(field.name)}:{field.name}{len(kind)}:{kind}="


_BLOB_LABEL = label(pa.field(BLOBS, pa.large_binary()))


def _entries(column: pa.ChunkedArray, field: pa.Field) -> list[str]:
    """Return the part of each row's head that one column makes; empty for null.

    The encoding is prefix-free: no two sequences of entries give the same head.
    """
    numbers = pc.binary_length(column).to_pylist() if _is_content(field) else _numbers(column)
    start = label(field)
    if numbers is not None:
        return ["" if number is None else f"{start}{number!r};" for number in numbers]
    return ["" if text is None else f"{start}{len(text)}:{text}" for text in _texts(column, field)]


def _numbers(column: pa.ChunkedArray) -> list[bool | int | float | None] | None:
    """Return booleans and numbers as they are, times as integers of their unit; None for other types."""
    type_ = column.type
    if pa.types.is_float16(type_):
        return column.cast(pa.float32()).to_pylist()
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return column.to_pylist()
    if pa.types.is_temporal(type_) and not pa.types.is_interval(type_):
        integers = pa.int32() if type_.bit_width == 32 else pa.int64()
        return [value for chunk in column.chunks for value in chunk.view(integers).to_pylist()]
    return None


def _texts(column: pa.ChunkedArray, field: pa.Field) -> list[str | None]:
    """Return the values as text, injectively: different values give different texts."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            return column.to_pylist()
        except UnicodeDecodeError as error:
            raise DataError(f"column {field.name!r}: text that is not UTF-8: {error}") from error
    return [None if value is None else dumps(value) for value in json_codec.encode(column, field)]


_DECLARED = {"sha256": re.compile("[0-9a-fA-F]{64}"), "md5": re.compile("[0-9a-fA-F]{32}")}
DIGEST_FIELDS = frozenset(_DECLARED)
_SIZES = (("original_width", "width"), ("original_height", "height"))
DECLARED_DIGESTS = ("off", "all")


def declared_digests(record: Mapping[str, Any], mode: str | None = None) -> dict[str, str]:
    """Return the digests of its image's file that a record declares, by field; no others than sha256 and md5.

    img2dataset takes digests of what it downloads. If it then decodes an image, its record has
    ``original_width``, and what it stores is encoded anew, unless told otherwise. Such a digest says nothing.

    Args:
        record: fields of an image, or of a document that has no other image.
        mode: one of `DECLARED_DIGESTS`: ``all`` also takes those of images that were decoded, and kept their
            size; ``off`` takes none.
    """
    if mode == "off" or (record.get(_SIZES[0][0]) is not None and not (mode == "all" and _kept_size(record))):
        return {}
    found = {name: record.get(name) for name in _DECLARED}
    return {
        name: value.lower()
        for name, value in found.items()
        if isinstance(value, str) and _DECLARED[name].fullmatch(value)
    }


def _kept_size(record: Mapping[str, Any]) -> bool:
    return all(record.get(before) == record.get(after) for before, after in _SIZES)


def digest_fault(data: Blob, declared: Mapping[str, str]) -> Fault | None:
    """Return the fault of a file that has another digest than declared; None if it has none."""
    for name, value in declared.items():
        if (found := hashlib.new(name, data, usedforsecurity=False).hexdigest()) != value:
            return digest_mismatch(name, value, found)
    return None


def digest_faults(table: pa.Table, mode: str | None = None) -> dict[int, Fault]:
    """Return the faults of images that have another digest than their documents declare, by row number.

    A digest is declared on the row of an image, or on the metadata row: of the only image, or in a list with
    one for each image, or with one at its position and null at those of texts. Frames of a TIFF are left out,
    as the digest is that of the file.

    Args:
        table: whole samples, as they are read from documents of others.
        mode: see `declared_digests`.
    """
    fields = [name for name in _DECLARED if name in table.column_names]
    if mode == "off" or all(table.column(name).null_count == table.num_rows for name in fields):
        return {}
    sizes = [name for pair in _SIZES for name in pair if name in table.column_names]
    columns = ["sample_id", "position", "modality", "source_ref", "materialize_error", *fields, *sizes]
    if not set(columns) <= set(table.column_names):  # a strict schema has left one out
        return {}
    values = [json_codec.encode(table.column(name), table.schema.field(name)) for name in columns]
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True))
    views, faults = _views(table, BLOBS), {}
    for _, sample in groupby(enumerate(rows), key=lambda entry: entry[1]["sample_id"]):
        document: dict[str, Any] = {}
        images = []
        for number, row in sample:
            if row["modality"] == "image":
                images.append((number, row))
            elif row["modality"] == "metadata":
                document = row
        records = _records_of([row for _, row in images], document)
        for (number, row), record in zip(images, records, strict=True):
            view = views[number]
            if view is None or row["materialize_error"] is not None or _is_frame(row["source_ref"]):
                continue
            declared = declared_digests(record, mode)
            if declared and (fault := digest_fault(view, declared)) is not None:
                faults[number] = fault
    return faults


def _records_of(images: Sequence[dict[str, Any]], document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the fields about each image of a sample, of which these are the rows."""
    positions = [row["position"] for row in images]
    found = ((name, _per_image(value, positions)) for name, value in document.items())
    lists = [(name, values) for name, values in found if values is not None]
    alone = document if len(images) == 1 else {}
    for index, row in enumerate(images):
        own = {name: alone.get(name) if value is None else value for name, value in row.items()}
        yield own | {name: values[index] for name, values in lists}


def _per_image(values: Any, positions: Sequence[int]) -> Sequence[Any] | None:
    """Return the values of a list with one for each image, or with nulls for texts between; else None."""
    if not isinstance(values, list):
        return None
    if len(values) == len(positions):
        return values
    others = set(range(len(values))).difference(positions)
    is_parallel = max(positions, default=0) < len(values) and all(values[place] is None for place in others)
    return [values[place] for place in positions] if is_parallel else None


def _is_frame(source_ref: str | None) -> bool:
    return (
        source_ref is not None
        and '"frame_index"' in source_ref
        and json.loads(source_ref)["frame_index"] is not None
    )
