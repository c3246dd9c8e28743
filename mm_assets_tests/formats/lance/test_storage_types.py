"""Every Arrow type comes out of a Lance table as it went in, or is refused by name."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mm_assets.formats.lance import (
    ARROW_TYPE,
    Location,
    UnsupportedType,
    file_version,
    from_storage,
    from_storage_schema,
    to_storage,
    to_storage_schema,
)
from mm_assets.formats.lance.table import LanceTable
from mm_assets.storage import storage_options_from_env
from mm_assets_tests.formats.lance.tables import names, rows, write

TENSOR = pa.fixed_shape_tensor(pa.int32(), [2])
K = pa.struct([("k", pa.int64())])
JSON = ['{"b": 1, "a": NaN, "n": 9007199254740993}', None, "null"]
COLUMNS = {
    "json": pa.array(JSON, pa.json_()),
    "large json": pa.array(JSON, pa.json_(pa.large_string())),
    "string_view": pa.array(["a", None, "b" * 100], pa.string_view()),
    "binary_view": pa.array([b"a", None, b"b" * 100], pa.binary_view()),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "dictionary int8 ordered": pa.DictionaryArray.from_arrays(
        pa.array([0, None, 1], pa.int8()), pa.array(["x", "y"]), ordered=True
    ),
    "dictionary of large": pa.array(["a", None, "a"], pa.large_string()).dictionary_encode(),
    "dictionary of int": pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int16()), pa.array([5, 6])),
    "list of view": pa.array([["a", None], None, []], pa.list_(pa.string_view())),
    "struct of view": pa.array([{"k": "a"}, None, {"k": None}], pa.struct([("k", pa.string_view())])),
    "map of views": pa.array([[("a", b"b")], None, []], pa.map_(pa.string_view(), pa.binary_view())),
    "struct of dictionary": pa.StructArray.from_arrays(
        [pa.array(["a", None, "a"]).dictionary_encode()], names=["d"]
    ),
    "list of json": pa.ListArray.from_arrays(pa.array([0, 1, 1, 2]), pa.array(["1", "{}"], pa.json_())),
    "decimal32": pa.array([Decimal("1.23"), None, Decimal("-9.99")], pa.decimal32(5, 2)),
    "decimal64": pa.array([Decimal("1.23"), None, Decimal("-9.99")], pa.decimal64(15, 2)),
    "decimal128": pa.array([Decimal("1.23"), None, None], pa.decimal128(10, 2)),
    "decimal256": pa.array([Decimal("1.23"), None, None], pa.decimal256(50, 2)),
    "uuid": pa.array([b"0" * 16, None, b"1" * 16], pa.uuid()),
    "tensor": pa.ExtensionArray.from_storage(TENSOR, pa.array([[1, 2], None, [3, 4]], TENSOR.storage_type)),
    "struct": pa.array([{"k": 1}, None, {"k": None}], K),
    "list of struct": pa.array([[{"k": 1}, None], None, []], pa.list_(K)),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
    "list of lists": pa.array([[[1], None], None, [[]]], pa.large_list(pa.list_(pa.int64()))),
    "fixed list of text": pa.array([["a", None], None, ["b", "c"]], pa.list_(pa.string(), 2)),
    "fixed list of structs": pa.array(
        [[{"a": 1}, None], None, [{"a": 2}, {"a": None}]], pa.list_(pa.struct([("a", pa.int64())]), 2)
    ),
    "fixed list of lists": pa.array([[[1]], None, [[]]], pa.list_(pa.list_(pa.int32()), 1)),
    "fixed list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.field("element", pa.int64()), 2)),
    "timestamp": pa.array([1000, None, -1000], pa.timestamp("ns", "Europe/Paris")),
    "date64": pa.array([86400000, None, 0], pa.date64()),
    "time": pa.array([1000, None, 2000], pa.time64("ns")),
    "duration": pa.array([1, None, 2], pa.duration("us")),
    "half": pa.array([np.float16(1.5), None, np.float16(2)], pa.float16()),
    "uint64": pa.array([1, None, 2**64 - 1], pa.uint64()),
    "bool": pa.array([True, None, False]),
    "null": pa.nulls(3),
    "binary": pa.array([b"a", None, b""]),
    "fixed binary": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "only nulls": pa.nulls(3, pa.string()),
}
REFUSED = {
    "list_view": pa.array([[1], None], pa.list_view(pa.int64())),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["a", None])),
    "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "nested dictionary of int": pa.ListArray.from_arrays(pa.array([0, 1]), pa.array([1]).dictionary_encode()),
    "struct of interval": pa.array([None], pa.struct([("i", pa.month_day_nano_interval())])),
}


def one_column(array: pa.Array, metadata: dict[str, str] | None = None) -> pa.Table:
    base = rows(names("p"))  # six rows; the column is repeated
    twice = pa.chunked_array([array, array])
    return base.append_column(pa.field("x", array.type, metadata=metadata), twice)


@pytest.mark.parametrize("name", COLUMNS)
def test_round_trip(tmp_path: Path, name: str) -> None:
    original = one_column(COLUMNS[name], {"unit": "m"})
    table = LanceTable(tmp_path / "t.lance")
    table.commit([write(table.uri, "p", original)])
    stored = table.dataset().to_table()
    assert table.dataset().schema.equals(stored.schema, check_metadata=True)
    assert stored.schema.field("x").metadata[b"unit"] == b"m"
    back = from_storage(stored)
    assert back.schema.equals(original.schema, check_metadata=True)
    assert table.schema().equals(original.schema, check_metadata=True)
    assert back.column("x").to_pylist() == original.column("x").to_pylist()
    back.validate(full=True)
    if not pa.types.is_dictionary(original.schema.field("x").type) and "dictionary" not in name:
        assert back.equals(original)
    # And a compaction does not change that.
    table.dataset().optimize.compact_files()
    assert (
        from_storage(table.dataset().to_table()).column("x").to_pylist() == original.column("x").to_pylist()
    )


NESTED = pa.array([{"a": {"b": n, "s": [str(n)]}} for n in range(12)])
SLICES = {
    "slice": NESTED.slice(6),
    "slice of a child": pa.StructArray.from_arrays([NESTED.slice(6)], ["c"]),
    "list of a slice": pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), NESTED.slice(6)),
    "map to a slice": pa.MapArray.from_arrays(
        pa.array(range(7), pa.int32()), pa.array(range(6)), NESTED.slice(6)
    ),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_of_nested_columns(tmp_path: Path, name: str) -> None:
    """As they are, Lance 14 panics on most."""
    original = rows(names("p")).append_column("x", SLICES[name])
    table = LanceTable(tmp_path / "t.lance")
    table.commit([write(table.uri, "p", original)])
    assert table.dataset().to_table().column("x").to_pylist() == SLICES[name].to_pylist()


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(tmp_path: Path, name: str) -> None:
    data = pa.table({"sample_id": ["a"] * len(REFUSED[name]), "odd one": REFUSED[name]})
    with pytest.raises(UnsupportedType, match="odd one"):
        write(tmp_path / "t.lance", "p", data)


def test_storage_schema_is_idempotent_and_leaves_plain_fields_alone() -> None:
    schema = pa.schema(
        [pa.field(str(i), a.type, metadata={"a": "b"}) for i, a in enumerate(COLUMNS.values())]
    )
    stored = to_storage_schema(schema)
    assert to_storage_schema(stored).equals(stored, check_metadata=True)
    assert from_storage_schema(stored).equals(schema, check_metadata=True)
    assert [f for f in stored if ARROW_TYPE not in (f.metadata or {})] == [
        f for f, s in zip(schema, stored, strict=True) if f.type == s.type
    ]
    plain = rows(names("a"))
    assert to_storage(plain) is plain and from_storage(plain) is plain


def test_file_version() -> None:
    def version(type_: pa.DataType) -> str:
        return file_version(pa.schema([("sample_id", pa.string()), ("x", type_)]))

    assert {
        version(t) for t in (pa.list_(pa.list_(pa.int64())), pa.large_binary(), pa.null(), pa.uuid())
    } == {"2.0"}
    nested = (K, pa.list_(K), pa.map_(pa.string(), K), pa.list_(pa.map_(pa.string(), pa.int8()), 2))
    assert {version(t) for t in nested} == {"2.2"}


def test_encoding_hint_stays_out_of_the_schema(tmp_path: Path) -> None:
    table = LanceTable(tmp_path / "t.lance")
    original = one_column(COLUMNS["struct"])
    table.commit([write(table.uri, "p", original)])
    assert table.dataset().schema.equals(original.schema, check_metadata=True)
    (fragment,) = table.dataset().get_fragments()
    assert {f.file_minor_version for f in fragment.metadata.files} == {2}


def test_storage_options_from_env() -> None:
    env = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "r"}
    basic = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_region": "r"}
    assert storage_options_from_env({}) == {}
    assert storage_options_from_env(env) == basic
    assert storage_options_from_env({**env, "AWS_ENDPOINT_URL": "https://h"}) == {
        **basic,
        "aws_endpoint": "https://h",
    }
    plain = storage_options_from_env({**env, "AWS_ENDPOINT_URL": "http://h:1"})
    assert plain == {**basic, "aws_endpoint": "http://h:1", "allow_http": "true"}


@pytest.mark.parametrize("uri", ["memory://bucket/table", "local"])
def test_locations_behave_alike(tmp_path: Path, uri: str) -> None:
    location = Location(str(tmp_path / "t") if uri == "local" else uri)
    assert (location.names("f"), location.read("f/a"), location.exists("f/a"), location.has_table()) == (
        [],
        None,
        False,
        False,
    )
    location.put("f/b", b"1")
    location.put("f/a", b"2")
    location.put("f/a", b"3")
    assert (location.names("f"), location.read("f/a"), location.exists("f/a")) == (["a", "b"], b"3", True)
    location.delete("f/a")
    location.delete("f/a")
    assert location.names("f") == ["b"]
