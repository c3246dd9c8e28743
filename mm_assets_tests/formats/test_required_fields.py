"""Fields that are never null, inside values that are: Avro, Protobuf and Parquet's VARIANT have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from mm_assets.formats.registry import FORMATS
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.nested_types import filled_column, plain_type
from mm_assets_tests.cli.commands import ok
from mm_assets_tests.formats.datasets import batch_of, item, read, write

pytestmark = pytest.mark.usefixtures("shared_workers")

STRUCT = pa.struct([pa.field("k", pa.int64(), nullable=False)])


def required(type_: pa.DataType, *others: pa.Field) -> pa.StructType:
    return pa.struct([pa.field("f", type_, nullable=False), *others])


UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, b"1" * 16], pa.binary(16)))
FLOATS = pa.list_(pa.field("item", pa.float32(), nullable=False), 2)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "struct": (STRUCT, [{"k": 1}, {"k": 2}]),
    "structs in a struct": (
        required(STRUCT, pa.field("o", STRUCT)),
        [{"f": {"k": 1}, "o": {"k": 2}}, {"f": {"k": 1}, "o": None}],
    ),
    "struct three deep": (required(required(STRUCT)), [{"f": {"f": {"k": 1}}}] * 2),
    "list of structs": (pa.list_(STRUCT), [[{"k": 1}, None], []]),
    "large list of structs": (pa.large_list(STRUCT), [[None, {"k": 1}], [{"k": 2}]]),
    "map of structs": (pa.map_(pa.string(), STRUCT), [[("a", {"k": 1}), ("b", None)], []]),
    "struct of a list": (required(pa.list_(pa.string())), [{"f": ["a", None]}, {"f": []}]),
    "struct of a fixed-size list": (required(FLOATS), [{"f": [1, 2]}, {"f": [3, 4]}]),
    "struct of dictionaries": (required(pa.dictionary(pa.int8(), pa.string())), [{"f": "a"}, {"f": "b"}]),
    "fixed-size list": (FLOATS, [[1, 2], [3, 4]]),
}
COLUMNS = {name: pa.array(values, type_) for name, (type_, values) in VALUES.items()} | {
    "struct of an extension": pa.StructArray.from_arrays([UUIDS], fields=required(pa.uuid()).fields)
}


# The Lance table has another name for the items of fixed-size lists.
CASES = [(name, kind) for name in COLUMNS for kind in FORMATS if kind != "lance" or "fixed-size" not in name]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_null_in_their_place(tmp_path: Path, name: str, kind: str) -> None:
    """As Arrow's ``take`` makes it: with nulls in the fields, too."""
    values = COLUMNS[name].take(pa.array([0, None, 1]))
    table = batch_of([item("a"), item("b"), item("c")]).data.append_column("x", values)
    write(kind, tmp_path / "first", InterleavedBatch(table))
    first = read(kind, tmp_path / "first")
    assert (first["x"].to_pylist(), first["x"].type) == (values.to_pylist(), plain_type(values.type))
    write("parquet", tmp_path / "second", InterleavedBatch(first))
    again = read("parquet", tmp_path / "second")
    assert (again["x"].to_pylist(), again["x"].type) == (values.to_pylist(), plain_type(values.type))


def test_a_null_where_none_may_be_stays_one(tmp_path: Path) -> None:
    values = pa.StructArray.from_arrays([pa.array([1, None, 2])], fields=list(STRUCT))
    assert filled_column(pa.chunked_array([values])).chunk(0).field(0).null_count == 1
    table = batch_of([item("a"), item("b"), item("c")]).data.append_column("x", values)
    with pytest.raises(ValueError, match=r"^column 'x': "):
        write("parquet", tmp_path, InterleavedBatch(table))
    assert not list(tmp_path.glob("*.parquet"))


@pytest.mark.parametrize("kind", FORMATS)
def test_variants_of_duckdb(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    duckdb.sql(
        "copy (select ['t'] as texts, case i when 0 then 42::variant when 2 then 'a'::variant end as x "
        f"from range(3) t(i)) to '{tmp_path}/in/f.parquet'"
    )
    for source, target, to in (("in", "out", kind), ("out", "again", "parquet")):
        ok("convert", tmp_path / source, tmp_path / target, "--to", to, "--workers", "1")
    ok("verify", *(tmp_path / name for name in ("in", "out", "again")))
    found = duckdb.sql(
        f"select x.typed_value, x.value from '{tmp_path}/again/*.parquet' "
        "where position < 0 order by source_ref"
    ).fetchall()
    assert found == [(42, None), (None, None), (None, b"\x05a")]
