"""Columns of Parquet that pyarrow did not write: what DuckDB reads of them, in every format, or one line."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mm_assets.accounting.canonical import derive
from mm_assets.formats.registry import FORMATS, reader_for
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.errors import INCOMPLETE_SAMPLE, ShardError
from mm_assets_tests.cli.commands import refused
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import batch_of, item, read, write
from mm_assets_tests.formats.document_parquet.reading import read_tolerantly
from mm_assets_tests.formats.foreign_parquet import (
    BSON,
    BYTE_ARRAY,
    DECIMAL,
    DOUBLE,
    ENUM,
    FIXED,
    FLOAT,
    INT32,
    INT64,
    INTERVAL,
    Column,
    text,
    write_foreign,
)
from mm_assets_tests.formats.raw_tars import make_tar

pytestmark = pytest.mark.usefixtures("shared_workers")

NAN, LEAST, MOST = float("nan"), -(2**63), 2**63 - 1
NS, US = pa.timestamp("ns"), pa.timestamp("us")


def decimal(physical: int, value: Any, precision: int, width: int | None = None) -> Column:
    return Column(physical, [value, None], DECIMAL, width=width, scale=2, precision=precision)


# Column made by hand, its type, and what DuckDB is asked; None where it reads no such type.
BY_HAND: dict[str, tuple[Column, pa.DataType, str | None]] = {
    "uint8": (Column(INT32, [255, None], 11), pa.uint8(), "x"),
    "uint16": (Column(INT32, [65535, None], 12), pa.uint16(), "x"),
    "uint32": (Column(INT32, [-1, None], 13), pa.uint32(), "x"),
    "uint64": (Column(INT64, [-1, None], 14), pa.uint64(), "x"),
    "int8": (Column(INT32, [-128, None], 15), pa.int8(), "x"),
    "int64": (Column(INT64, [LEAST, MOST], 18), pa.int64(), "x"),
    "date": (Column(INT32, [-(2**31) + 2, None], 6), pa.date32(), "x - date '1970-01-01'"),
    "time of ms": (Column(INT32, [86_399_999, None], 7), pa.time32("ms"), "epoch_ms(x)"),
    "24:00 of ms": (Column(INT32, [86_400_000, None], 7), pa.time32("ms"), "epoch_ms(x)"),
    "time of us": (Column(INT64, [1, None], 8), pa.time64("us"), "epoch_us(x)"),
    "24:00 of us": (Column(INT64, [86_400_000_000, None], 8), pa.time64("us"), "epoch_us(x)"),
    "UTC of ms": (Column(INT64, [-62_135_596_800_001, None], 9), pa.timestamp("ms", "UTC"), "epoch_ms(x)"),
    "UTC of us": (
        Column(INT64, [-62_135_596_800_000_001, None], 10),
        pa.timestamp("us", "UTC"),
        "epoch_us(x)",
    ),
    "decimal in 4 bytes": (decimal(INT32, 123456789, 9), pa.decimal128(9, 2), "x"),
    "decimal in 8 bytes": (decimal(INT64, 10**18 - 1, 18), pa.decimal128(18, 2), "x"),
    "decimal in any bytes": (decimal(BYTE_ARRAY, b"\xff\x01", 20), pa.decimal128(20, 2), "x"),
    "decimal in 3 bytes": (decimal(FIXED, b"\0\x30\x39", 5, 3), pa.decimal128(5, 2), "x"),
    "decimal of 38 digits": (
        decimal(FIXED, (1 - 10**38).to_bytes(16, "big", signed=True), 38, 16),
        pa.decimal128(38, 2),
        "x",
    ),
    "decimal of 76 digits": (
        decimal(FIXED, (10**76 - 1).to_bytes(32, "big", signed=True), 76, 32),
        pa.decimal256(76, 2),
        None,
    ),
    "ENUM": (Column(BYTE_ARRAY, ["é".encode(), b""], ENUM), pa.string(), "x"),
    "JSON": (Column(BYTE_ARRAY, [b'{"a":1.10,"a":2}', b"null"], 19), pa.json_(), "x::varchar"),
    "BSON": (Column(BYTE_ARRAY, [b"\5\0\0\0\0", None], BSON), pa.binary(), None),
    "interval": (Column(FIXED, [struct.pack("<3I", 1, 2, 3), None], INTERVAL, width=12), pa.binary(12), None),
    "UUID": (Column(FIXED, [bytes(range(16)), None], logical=14, width=16), pa.uuid(), "x"),
    "half": (Column(FIXED, [struct.pack("<e", -0.0), b"\0\x7e"], logical=15, width=2), pa.float16(), "x"),
    "float": (Column(FLOAT, [NAN, -0.0]), pa.float32(), "x"),
    "double": (Column(DOUBLE, [float("-inf"), -0.0]), pa.float64(), "x"),
    "bytes": (Column(BYTE_ARRAY, [b"\xff", b""]), pa.binary(), "x"),
    "fixed bytes": (Column(FIXED, [b"\0\1", None], width=2), pa.binary(2), "x"),
    "null": (Column(INT32, [None, None], logical=11), pa.null(), "x"),
    "geometry": (Column(BYTE_ARRAY, [struct.pack("<BIdd", 1, 1, 1, 2), None], logical=17), pa.binary(), None),
}
# Value as DuckDB writes it, its type, and what DuckDB is asked of it.
BY_DUCKDB: dict[str, tuple[str, pa.DataType, str]] = {
    "hugeint, as DuckDB writes it": ("(2::hugeint ** 100)::hugeint", pa.float64(), "x"),
    "decimal": ("'-12345678901234567890.123'::decimal(38, 3)", pa.decimal128(38, 3), "x"),
    "infinite date": ("'infinity'::date", pa.date32(), "2147483647"),
    "infinite timestamp": ("'-infinity'::timestamp", US, "-9223372036854775807"),
    "year 1": ("'0001-01-01 00:00:00.000001'::timestamp", US, "epoch_us(x)"),
    "nanoseconds": ("'1680-01-01 00:00:00.000000001'::timestamp_ns", NS, "epoch_ns(x)"),
    "zone": ("'2020-01-01 00:00:00+05:30'::timestamptz", pa.timestamp("us", "UTC"), "epoch_us(x)"),
    "time of ns": ("'23:59:59.999999999'::time_ns", pa.time64("ns"), "epoch_ns(x)"),
    "time with a zone, in UTC": ("'01:00:00+05:30'::timetz", pa.time64("us"), "epoch_us(x::time)"),
    "enum": ("'a'::enum('a', 'b')", pa.string(), "x"),
    "bits": ("'101'::bit", pa.string(), "x"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", pa.uuid(), "x"),
    "json": ("""'{"b": 1.10, "a": 12345678901234567890123, "b": 2}'::json""", pa.json_(), "x::varchar"),
    "NUL": ("'a' || chr(0)", pa.string(), "x"),
    "list": ("[1, null]", pa.list_(pa.field("element", pa.int32())), "x"),
    "list of lists": (
        "[[1, null], null, []]",
        pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int32())))),
        "x",
    ),
    "struct of nulls": (
        "{'a': {'b': null::int}, 'c': null::varchar}",
        pa.struct([("a", pa.struct([("b", pa.int32())])), ("c", pa.string())]),
        "x",
    ),
}
CASES: dict[str, tuple[Any, pa.DataType, str | None]] = {**BY_HAND, **BY_DUCKDB}
LAYOUTS = {
    "documents": {"texts": text("a", "b")},
    "items": {
        "sample_id": text("a", "b"),
        "position": Column(INT32, [-1, -1]),
        "modality": text("metadata", "metadata"),
    },
}
HEADS = {
    "documents": "'t' as texts",
    "items": "i::varchar as sample_id, -1::int as position, 'metadata' as modality",
}


def source(file: Path, layout: str, made: Any) -> Path:
    if isinstance(made, Column):
        return write_foreign(file, {**LAYOUTS[layout], "x": made})
    file.parent.mkdir(parents=True, exist_ok=True)
    value = f"case i when 0 then {made} end"
    duckdb.sql(f"copy (select {HEADS[layout]}, {value} as x from range(2) t(i)) to '{file}' (format parquet)")
    return file


def said(table: pa.Table) -> list[str]:
    """The values of the metadata rows, as DuckDB's answers are given."""
    column = table.filter(pc.less(table["position"], 0))["x"]
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return list(map(repr, column.to_pylist()))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_a_type(tmp_path: Path, layout: str, name: str) -> None:
    made, type_, question = CASES[name]
    file = source(tmp_path / "in" / "f.parquet", layout, made)
    table = read("parquet", file)
    assert table["x"].type == type_
    if question is not None:
        answers = duckdb.connect().sql(
            f"select case when x is null then null else {question} end from '{file}'"
        )
        assert said(table) == [repr(value) for (value,) in answers.fetchall()]
    same(read("parquet", file, quarantine_errors=True), table)
    for kind in FORMATS if layout == "documents" else ():  # the rows are of the same type in either layout
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            (report,) = write(kind, tmp_path / kind, reader_for("parquet", str(file))).partitions
        assert derive(kind, report.uri, report.partition).digest == report.digest
        assert said(read(kind, tmp_path / kind)) == said(table)


TOO_LONG = "does not fit in precision of decimal128("
REFUSED = {
    "decimal in 4 bytes": decimal(INT32, 123456789, 4),
    "decimal in 8 bytes": decimal(INT64, MOST, 10),
    "decimal in 16 bytes": decimal(FIXED, (10**30).to_bytes(16, "big"), 20, 16),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", REFUSED)
def test_decimals_of_more_digits_than_declared(tmp_path: Path, layout: str, name: str) -> None:
    """Parquet would keep their last bytes: 1234567.89 became -130.35."""
    file = source(tmp_path / "in" / "f.parquet", layout, REFUSED[name])
    line = refused("convert", file, tmp_path / "out", "--to", "parquet", "--workers", "1")
    where = "row 0: " if layout == "documents" else ""
    assert line.startswith(f"mm-assets: {file}: {where}column 'x': Decimal value ") and TOO_LONG in line
    assert not list((tmp_path / "out").glob("*.parquet"))
    reading = read_tolerantly(file)
    (loss,) = [loss for loss in reading.losses if loss.kind != INCOMPLETE_SAMPLE]
    assert loss.kind == "bad_layout" and "f.parquet: row 0: column 'x': Decimal" in loss.reason
    assert {row["x"] for row in reading.rows} == {None}


def odd(values: list[int], type_: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)


LOOSE = {
    "date64 with a time": (odd([1, 0], pa.date64()), "does not represent a whole number of days"),
    "in a struct": (
        pa.StructArray.from_arrays([odd([86_400_001, 0], pa.date64())], ["d"]),
        "does not represent a whole number of days",
    ),
    "seconds beyond a day": (odd([2**31 - 1, 0], pa.time32("s")), "not within the acceptable range"),
    "decimal": (pa.array([123456789, 1]).cast(pa.decimal128(19)).view(pa.decimal128(4)), TOO_LONG),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", LOOSE)
def test_values_that_their_type_does_not_hold(tmp_path: Path, name: str, kind: str) -> None:
    values, words = LOOSE[name]
    table = batch_of([item("a"), item("b")]).data.append_column("x", values)
    with pytest.raises(ShardError, match=r"^somewhere: column 'x': ") as error:
        write(kind, tmp_path, InterleavedBatch(table, ("somewhere",)))
    assert words in str(error.value)


def test_seconds_that_parquet_has_as_milliseconds(tmp_path: Path) -> None:
    table = batch_of([item("a")]).data.append_column("x", odd([MOST], pa.timestamp("s")))
    with pytest.raises(ValueError, match=r"^column 'x': Integer overflow"):
        write("parquet", tmp_path, InterleavedBatch(table))
    assert not list(tmp_path.iterdir())


NUMBERS: dict[str, tuple[pa.DataType, str]] = {
    "0.1234567890123456789": (pa.float64(), "double"),
    "1e-400": (pa.float64(), "double"),
    "-0.0": (pa.float64(), "double"),
    "1E2": (pa.float64(), "double"),
    "-0": (pa.int64(), "hugeint"),
    "9007199254740993": (pa.int64(), "hugeint"),
    "-9223372036854775807": (pa.int64(), "hugeint"),
    "18446744073709551615": (pa.string(), "varchar"),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("literal", NUMBERS)
def test_numbers_of_a_tars_json(tmp_path: Path, literal: str, kind: str) -> None:
    type_, second = NUMBERS[literal]
    tar = make_tar(tmp_path / "f.tar", [("a.json", f'{{"texts": ["t"], "x": {literal}}}'.encode())])
    (report,) = write(kind, tmp_path / kind, reader_for("webdataset", str(tar))).partitions
    assert derive(kind, report.uri, report.partition).digest == report.digest
    table = read(kind, tmp_path / kind)
    answer = duckdb.sql(f"""select ('{{"x": {literal}}}'::json ->> 'x')::{second}""").fetchall()
    assert (table["x"].type, said(table)) == (type_, [repr(answer[0][0])])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_enum_that_is_not_utf8(tmp_path: Path, layout: str) -> None:
    reading = read_tolerantly(
        source(tmp_path / "f.parquet", layout, Column(BYTE_ARRAY, [b"\xff", b"b"], ENUM))
    )
    (loss,) = [loss for loss in reading.losses if loss.kind != INCOMPLETE_SAMPLE]
    assert (loss.kind, "row 0: column 'x': not UTF-8" in loss.reason) == ("not_utf8", True)
    assert {row["x"] for row in reading.rows} - {None} == {"b"}
