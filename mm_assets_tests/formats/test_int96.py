"""INT96 timestamps of Spark, Hive and Impala: what DuckDB reads of them, or one line."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.registry import FORMATS
from mm_assets.interleaved import InterleavedParquetReader
from mm_assets_tests.cli.commands import ok, refused
from mm_assets_tests.formats.datasets import read
from mm_assets_tests.formats.document_parquet.reading import read_tolerantly
from mm_assets_tests.formats.foreign_parquet import INT32, INT96, Column, int96, text, write_foreign

pytestmark = pytest.mark.usefixtures("shared_workers")

OLD, NOW, LAST = (
    datetime.datetime(1000, 1, 1),
    datetime.datetime(2020, 1, 1, 1, 2, 3, 4),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),
)
EDGES = [datetime.datetime(1677, 9, 21, 0, 12, 44), datetime.datetime(2262, 4, 11, 23, 47, 16)]


def documents(values: list[bytes | None]) -> dict[str, Column]:
    return {"texts": text(*("abcdefgh"[: len(values)])), "t": Column(INT96, values)}


def items(values: list[bytes | None]) -> dict[str, Column]:
    return {
        "sample_id": text(*("abcdefgh"[: len(values)])),
        "position": Column(INT32, [-1] * len(values)),
        "modality": text(*["metadata"] * len(values)),
        "t": Column(INT96, values),
    }


LAYOUTS: dict[str, Callable[[list[bytes | None]], dict[str, Column]]] = {
    "documents": documents,
    "items": items,
}
UNITS: dict[str, tuple[list[bytes | None], pa.DataType]] = {
    "years of nanoseconds": ([int96(NOW, 5), None, *map(int96, EDGES)], pa.timestamp("ns")),
    "other years": ([int96(OLD), int96(NOW), None, int96(LAST)], pa.timestamp("us")),
    "one second beyond": ([int96(EDGES[1] + datetime.timedelta(seconds=2))], pa.timestamp("us")),
    "nulls": ([None, None], pa.timestamp("ns")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("values", "type_"), UNITS.values(), ids=UNITS)
def test_the_unit_holds_every_value(
    tmp_path: Path, layout: str, values: list[bytes | None], type_: pa.DataType
) -> None:
    file = write_foreign(tmp_path / "in" / "f.parquet", LAYOUTS[layout](values), groups=1)
    table = read("parquet", file)
    column = table.filter(pc.less(table["position"], 0))["t"]
    assert column.type == type_
    second = duckdb.sql(f"select epoch_us(t) from '{file}'").fetchall()
    found = column.cast(pa.int64()).to_pylist()
    per_us = 1000 if type_ == pa.timestamp("ns") else 1
    assert [None if v is None else v // per_us for v in found] == [row[0] for row in second]
    assert read("parquet", file, quarantine_errors=True)["t"].equals(table["t"])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_converted_and_verified(tmp_path: Path, layout: str, kind: str) -> None:
    write_foreign(tmp_path / "in" / "f.parquet", LAYOUTS[layout]([int96(OLD), None, int96(LAST)]))
    ok("convert", tmp_path / "in", tmp_path / "out", "--to", kind, "--workers", "1")
    ok("verify", tmp_path / "in", tmp_path / "out")
    column = read(kind, tmp_path / "out")["t"]
    assert [v for v in column.to_pylist() if v is not None] == [OLD, LAST]


@pytest.mark.parametrize("command", ["convert", "inspect", "verify"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_that_no_unit_holds_are_refused(tmp_path: Path, layout: str, command: str) -> None:
    file = write_foreign(tmp_path / "in" / "f.parquet", LAYOUTS[layout]([int96(OLD), int96(NOW, 1)]))
    more: list[object] = {
        "convert": [tmp_path / "out", "--to", "parquet"],
        "inspect": [],
        "verify": [tmp_path / "in"],
    }[command]
    line = refused(command, tmp_path / "in", *more)
    assert line.startswith(f"mm-assets: {file}: ") and "column 't': INT96 timestamps of this file fit" in line


def test_values_beyond_microseconds_are_refused(tmp_path: Path) -> None:
    file = write_foreign(tmp_path / "f.parquet", documents([b"\0" * 8 + (2**31 - 1).to_bytes(4, "little")]))
    assert "column 't': INT96" in refused("inspect", file)


NESTED: dict[str, tuple[pa.DataType, Callable[[Any], Any]]] = {
    "list<struct>": (
        pa.list_(pa.struct([("x.y", pa.string()), ("t", pa.timestamp("us"))])),
        lambda v: [{"t": v}],
    ),
    "map": (pa.map_(pa.string(), pa.timestamp("us")), lambda v: [("k", v)]),
    "struct<list>": (pa.struct([("t", pa.list_(pa.timestamp("us")))]), lambda v: {"t": [None, v]}),
}


@pytest.mark.parametrize(("type_", "nest"), NESTED.values(), ids=NESTED)
def test_inside_other_types_and_in_every_row_group(
    tmp_path: Path, type_: pa.DataType, nest: Callable[[Any], Any]
) -> None:
    values = [None, nest(NOW), nest(NOW), nest(LAST)]
    table = pa.table({"texts": [["a"], ["b"], ["c"], ["d"]], "x": pa.array(values, type_)})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=1, use_deprecated_int96_timestamps=True)
    reading = read_tolerantly(tmp_path / "f.parquet")
    assert [value for (value,) in reading.metadata("x")] == table["x"].to_pylist()


def test_a_unit_that_is_asked_for(tmp_path: Path) -> None:
    file = write_foreign(tmp_path / "f.parquet", documents([int96(OLD), int96(NOW, 1)]))
    (batch,) = InterleavedParquetReader(str(file), read_kwargs={"coerce_int96_timestamp_unit": "us"})
    assert [v for v in batch.data["t"].to_pylist() if v] == [OLD, NOW]
