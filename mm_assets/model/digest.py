"""Digest of items that does not depend on row order, batch boundaries or file format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mm_assets.model import json_codec
from mm_assets.model.errors import DataError
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
