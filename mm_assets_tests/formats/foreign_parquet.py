"""Parquet files made byte by byte, with types that pyarrow does not write: flat, PLAIN, uncompressed."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
UTF8, ENUM, DECIMAL, BSON, INTERVAL = 0, 4, 5, 20, 21  # of ConvertedType
_FORMATS = {INT32: "<i", INT64: "<q", FLOAT: "<f", DOUBLE: "<d"}
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12  # of Thrift's compact protocol
_JULIAN_EPOCH = 2_440_588


@dataclass(frozen=True)
class Column:
    """One optional column.

    ``logical`` is the number of a LogicalType without parameters, ``width`` that of FIXED values.
    """

    physical: int
    values: Sequence[Any]
    converted: int | None = None
    logical: int | None = None
    width: int | None = None
    scale: int | None = None
    precision: int | None = None


def int96(moment: datetime.datetime, nanoseconds: int = 0) -> bytes:
    """A timestamp as Spark and Impala write it; ``nanoseconds`` are added to its microseconds."""
    since = moment - datetime.datetime(1970, 1, 1)
    within = (since.seconds * 1_000_000 + since.microseconds) * 1000 + nanoseconds
    return struct.pack("<Qi", within, since.days + _JULIAN_EPOCH)


def write_foreign(path: Path, columns: dict[str, Column], groups: int = 1) -> Path:
    """Write a file; each row group has all rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data, row_groups, rows = b"PAR1", [], len(next(iter(columns.values())).values)
    for _ in range(groups):
        chunks, start = [], len(data)
        for name, column in columns.items():
            page = _page(column)
            chunks.append(_chunk(name, column, len(data), len(page)))
            data += page
        row_groups.append([(1, _LIST, (_STRUCT, chunks)), (2, _I64, len(data) - start), (3, _I64, rows)])
    root = [(4, _BINARY, b"schema"), (5, _I32, len(columns))]
    schema = [root, *(_element(name, column) for name, column in columns.items())]
    footer = _struct(
        [
            (1, _I32, 1),
            (2, _LIST, (_STRUCT, schema)),
            (3, _I64, rows * groups),
            (4, _LIST, (_STRUCT, row_groups)),
            (6, _BINARY, b"by hand"),
        ]
    )
    path.write_bytes(data + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return path


def text(*values: str | bytes | None) -> Column:
    """A column of strings; bytes are written as they are."""
    return Column(BYTE_ARRAY, [v.encode() if isinstance(v, str) else v for v in values], UTF8)


def _element(name: str, column: Column) -> list[Any]:
    numbers = {
        1: column.physical,
        2: column.width,
        3: 1,
        6: column.converted,
        7: column.scale,
        8: column.precision,
    }
    fields = [(at, _I32, number) for at, number in numbers.items() if number is not None]
    if column.logical is not None:
        fields.append((10, _STRUCT, [(column.logical, _STRUCT, [])]))
    return sorted([*fields, (4, _BINARY, name.encode())], key=lambda field: field[0])


def _chunk(name: str, column: Column, offset: int, size: int) -> list[Any]:
    metadata = [
        (1, _I32, column.physical),
        (2, _LIST, (_I32, [0, 3])),
        (3, _LIST, (_BINARY, [name.encode()])),
        (4, _I32, 0),
        (5, _I64, len(column.values)),
        (6, _I64, size),
        (7, _I64, size),
        (9, _I64, offset),
    ]
    return [(2, _I64, offset), (3, _STRUCT, metadata)]


def _page(column: Column) -> bytes:
    levels = [value is not None for value in column.values]
    packed = bytearray(-(-len(levels) // 8))
    for at, is_there in enumerate(levels):
        packed[at // 8] |= is_there << at % 8
    run = _varint(len(packed) << 1 | 1) + bytes(packed)
    body = struct.pack("<I", len(run)) + run
    body += b"".join(_plain(column.physical, value) for value in column.values if value is not None)
    header = [(1, _I32, len(levels)), (2, _I32, 0), (3, _I32, 3), (4, _I32, 3)]
    return _struct([(1, _I32, 0), (2, _I32, len(body)), (3, _I32, len(body)), (5, _STRUCT, header)]) + body


def _plain(physical: int, value: Any) -> bytes:
    if physical == BYTE_ARRAY:
        return struct.pack("<I", len(value)) + bytes(value)
    return bytes(value) if physical in (INT96, FIXED) else struct.pack(_FORMATS[physical], value)


def _struct(fields: Sequence[tuple[int, int, Any]]) -> bytes:
    found, last = b"", 0
    for at, kind, value in fields:
        step = at - last  # of more than 15, the number itself follows
        found += bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + _value(_I32, at)
        found += _value(kind, value)
        last = at
    return found + b"\0"


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRUCT:
        return _struct(value)
    if kind == _BINARY:
        return _varint(len(value)) + bytes(value)
    if kind == _LIST:
        inner, values = value
        count = len(values)
        head = bytes([count << 4 | inner]) if count < 15 else bytes([0xF0 | inner]) + _varint(count)
        return head + b"".join(_value(inner, each) for each in values)
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])
