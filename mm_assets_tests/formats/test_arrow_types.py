"""Every Arrow type, in every format: it comes back equal and `verify` says so, or it is refused in one line
before anything is written.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting.canonical import derive
from mm_assets.cli import main
from mm_assets.formats.registry import writer_for
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.nested_types import nulls
from mm_assets.model.schema import align_table, canonical_schema
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write

pytestmark = pytest.mark.usefixtures("shared_workers")


class Celsius(pa.ExtensionType):
    """An extension type that a user has registered."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "mm_assets_tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: pa.DataType, _serialized: bytes) -> Celsius:
        return cls()


@pytest.fixture(autouse=True)
def _celsius() -> Iterator[None]:
    pa.register_extension_type(Celsius())
    yield
    pa.unregister_extension_type("mm_assets_tests.celsius")


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _listed(values: pa.Array) -> pa.Array:
    """A value, a null, an empty list, …"""
    return pa.ListArray.from_arrays(
        pa.array([0, 1, 1, 2], pa.int32()), values, mask=pa.array([False, True, False])
    )


def _dictionary(values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.int8()), values)


def _extension(type_: pa.BaseExtensionType, values: list[object]) -> pa.Array:
    return pa.ExtensionArray.from_storage(type_, pa.array(values, type_.storage_type))


# As Parquet names them, as DuckDB does, and as nobody does.
_ENTRIES = pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int64()))
_PAIRS = [[("a", 1), ("b", None)], None, []]
_MAP = pa.map_(pa.string(), pa.int64())
_STRUCT = pa.struct([("k", pa.int64())])
_KINDS = pa.array([0, 1, 0], pa.int8())
_TENSOR = pa.fixed_shape_tensor(pa.int32(), [2])

ALIKE: dict[str, dict[str, pa.Array]] = {
    "maps": {
        "map": pa.array(_PAIRS, _MAP),
        "map with other names": pa.array(_PAIRS, _ENTRIES),
        "map with sorted keys": pa.array(_PAIRS, pa.map_(pa.string(), pa.int64(), keys_sorted=True)),
        "map with items that are never null": pa.array(
            [[("a", 1)], None, []], pa.map_(pa.string(), pa.field("value", pa.int64(), False))
        ),
        "map with metadata inside": pa.array(
            _PAIRS, pa.map_(pa.string(), pa.field("value", pa.int64(), metadata={"unit": "m"}))
        ),
        "map of numbers": pa.array([[(1, "a")], None, []], pa.map_(pa.int64(), pa.string())),
        "map of maps": pa.array([[("a", [("b", 1)])], None, [("c", None)]], pa.map_(pa.string(), _ENTRIES)),
        "map of structs": pa.array([[("a", {"k": 1})], None, []], pa.map_(pa.string(), _STRUCT)),
        "map of nulls": pa.array([[("a", None)], None, []], pa.map_(pa.string(), pa.null())),
        "map of views": pa.array([[("a", b"b")], None, []], pa.map_(pa.string_view(), pa.binary_view())),
        "map of dictionaries": pa.MapArray.from_arrays(
            pa.array([0, 1, None, 2]), pa.array(["x", "y"]), _dictionary(pa.array(["u"]))[:2]
        ),
        "list of maps": pa.array([[[("a", 1)], None], None, []], pa.list_(_ENTRIES)),
        "struct of maps": pa.array([{"m": [("a", 1)]}, None, {"m": None}], pa.struct([("m", _ENTRIES)])),
    },
    "structs": {
        "struct": pa.array([{"k": 1}, None, {"k": None}], _STRUCT),
        "struct with a field that is never null": pa.array(
            [{"k": 1}] * 3, pa.struct([pa.field("k", pa.int64(), nullable=False)])
        ),
        "struct of nulls": pa.array([{"n": None}, None, {"n": None}], pa.struct([("n", pa.null())])),
        "struct of views": pa.array([{"k": "a"}, None, {"k": None}], pa.struct([("k", pa.string_view())])),
        "struct of an extension": pa.StructArray.from_arrays(
            [_extension(pa.uuid(), [b"0" * 16, None, b"1" * 16])], ["u"]
        ),
    },
    "lists": {
        "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "fixed-size list with another name": pa.array(
            [[1, 2], None, [3, None]], pa.list_(pa.field("element", pa.int64()), 2)
        ),
        "list with another name": pa.array([[1], None, []], pa.list_(pa.field("element", pa.int64()))),
        "list of what is never null": pa.array(
            [[1], None, []], pa.list_(pa.field("item", pa.int64(), nullable=False))
        ),
        "list of nulls": pa.array([[None], None, []], pa.list_(pa.null())),
        "list of structs": pa.array([[{"k": 1}, None], None, []], pa.list_(_STRUCT)),
        "list of structs of nulls and seconds": pa.array(  # Parquet has neither
            [[{"none": None, "when": 5, "day": 86_400_000}], None, []],
            pa.list_(
                pa.struct([("none", pa.null()), ("when", pa.timestamp("s", "UTC")), ("day", pa.date64())])
            ),
        ),
        "list of views": pa.array([["a", None], None, []], pa.list_(pa.string_view())),
        "list of dictionaries": _listed(pa.array(["a", "b"]).dictionary_encode()),
        "list of JSON": _listed(pa.array(["1", "{}"], pa.json_())),
        "list of a user's extension": _listed(_extension(Celsius(), [1, 2])),
        "large list": pa.array([[[1], None], None, [[]]], pa.large_list(pa.list_(pa.int64()))),
        "fixed-size list": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2)),
        "fixed-size list of truth values": pa.array(
            [[True, False], None, [None, True]], pa.list_(pa.bool_(), 2)
        ),
        "fixed-size list of text": pa.array([["a", None], None, ["b", "c"]], pa.list_(pa.string(), 2)),
        "fixed-size list of lists": pa.array(
            [[[1, 2]], None, [[3, 4]]], pa.list_(pa.list_(pa.int64(), 2), 1)
        ),
        "fixed-size list of lists of nulls": pa.array(
            [[[[None]]], None, [[[]]]], pa.list_(pa.list_(pa.list_(pa.null())), 1)
        ),
        "fixed-size list of structs": pa.array([[{"k": 1}], None, [None]], pa.list_(_STRUCT, 1)),
    },
    "dictionaries": {  # are unwrapped
        "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
        "dictionary, ordered": pa.DictionaryArray.from_arrays(
            pa.array([0, None, 1], pa.int8()), pa.array(["x", "y"]), ordered=True
        ),
        "dictionary of large text": pa.array(["a", None, "a"], pa.large_string()).dictionary_encode(),
        "dictionary of numbers": _dictionary(pa.array([5])),
        "dictionary of bytes": _dictionary(pa.array([b"x"])),
        "dictionary of nulls": _dictionary(pa.nulls(1)),
        "dictionary of structs": _dictionary(pa.array([{"k": 1}])),
        "dictionary of lists": _dictionary(pa.array([[1]])),
        "dictionary of maps": _dictionary(pa.array([[("a", 1)]], _ENTRIES)),
    },
    "numbers": {
        "null": pa.nulls(3),
        "truth value": pa.array([True, None, False]),
        "half": pa.array([np.float16(1.5), None, np.float16("nan")], pa.float16()),
        "unsigned": pa.array([1, None, 2**64 - 1], pa.uint64()),
        "decimal32": pa.array([Decimal("1.23"), None, Decimal("-9.99")], pa.decimal32(5, 2)),
        "decimal64": pa.array([Decimal("1.23"), None, Decimal("-9.99")], pa.decimal64(15, 2)),
        "decimal128": pa.array([Decimal("1.23"), None, None], pa.decimal128(10, 2)),
        "decimal256": pa.array([Decimal("1.23"), None, None], pa.decimal256(50, 2)),
    },
    "times": {
        "date32": pa.array([1, None, -1], pa.date32()),
        "date64": pa.array([86_400_000, None, 0], pa.date64()),
        "time32 in seconds": pa.array([1, None, 2], pa.time32("s")),
        "time64 in nanoseconds": pa.array([1, None, 2], pa.time64("ns")),
        "timestamp in seconds": pa.array([1, None, -2], pa.timestamp("s")),
        "timestamp with a zone": pa.array([1, None, -2], pa.timestamp("ns", "Europe/Paris")),
        "duration": pa.array([1, None, -2], pa.duration("s")),
    },
    "text and bytes": {
        "large text": pa.array(["a", None, ""], pa.large_string()),
        "text view": pa.array(["a", None, "b" * 100], pa.string_view()),
        "bytes": pa.array([b"a", None, b""]),
        "large bytes": pa.array([b"a", None, b""], pa.large_binary()),
        "bytes view": pa.array([b"a", None, b"b" * 100], pa.binary_view()),
        "fixed-size bytes": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    },
    "extensions": {
        "JSON": pa.array(['{"b": 1, "a": NaN}', None, "null"], pa.json_()),
        "JSON in large text": pa.array(["1", None, "null"], pa.json_(pa.large_string())),
        "UUID": pa.array([b"0" * 16, None, b"1" * 16], pa.uuid()),
        "bool8": _extension(pa.bool8(), [1, None, 0]),
        "opaque": _extension(pa.opaque(pa.int64(), "type", "vendor"), [1, None, 3]),
        "tensor": _extension(_TENSOR, [[1, 2], None, [3, 4]]),
        "a user's extension": _extension(Celsius(), [1, None, 3]),
    },
}

# What only some formats can hold, and those that refuse it.
PARTLY = {
    "struct without fields": (pa.array([{}, None, {}], pa.struct([])), {"parquet", "lance"}),
    "bytes of size 0": (pa.array([b"", None, b""], pa.binary(0)), {"parquet", "lance"}),
    "decimal of hundreds": (
        pa.array([Decimal("1200"), None, Decimal("-3400")], pa.decimal128(10, -2)),
        {"parquet"},
    ),
    "list of dictionaries of numbers": (_listed(pa.array([1, 2]).dictionary_encode()), {"lance"}),
    "struct of dictionaries of bytes": (
        pa.StructArray.from_arrays([_dictionary(pa.array([b"x"]))], ["d"]),
        {"lance"},
    ),
    "list of dictionaries of nulls": (_listed(_dictionary(pa.nulls(1))[:2]), {"lance"}),
}

REFUSED = {
    "list view": pa.array([[1], None, []], pa.list_view(pa.int64())),
    "large list view": pa.array([[1], None, []], pa.large_list_view(pa.int64())),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["a", None])),
    "interval": pa.array([(1, 2, 3), None, (1, 1, 1)], pa.month_day_nano_interval()),
    "dense union": pa.UnionArray.from_dense(
        _KINDS, pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["x"])]
    ),
    "sparse union": pa.UnionArray.from_sparse(_KINDS, [pa.array([1, 2, 3]), pa.array(["x", "y", "z"])]),
    "fixed-size list of nothing": pa.array([[], None, []], pa.list_(pa.int64(), 0)),
    "struct with a name twice": pa.StructArray.from_arrays(
        [pa.array([1, 2, 3]), pa.array([1, 2, 3])], names=["a", "a"]
    ),
    "struct of an interval": pa.array([None] * 3, pa.struct([("i", pa.month_day_nano_interval())])),
    "list of unions": _listed(pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])])),
    "map of list views": pa.array([[("a", [1])], None, []], pa.map_(pa.string(), pa.list_view(pa.int64()))),
    "list of dictionaries of structs": _listed(_dictionary(pa.array([{"k": 1}]))[:2]),
}

PARTLY_CASES = [(name, kind, kind in refusing) for name, (_, refusing) in PARTLY.items() for kind in FORMATS]


def table_with(**columns: pa.Array) -> pa.Table:
    table = batch_of([item("a"), item("b"), item("c")]).data
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def comes_back(kind: str, folder: Path, table: pa.Table) -> None:
    (report,) = write(kind, folder, InterleavedBatch(table, ("somewhere",))).partitions
    same(read(kind, folder), align_table(table, canonical_schema(table.schema)))
    assert derive(kind, report.uri, report.partition).digest == report.digest
    assert main(["verify", str(folder), str(folder)]) == 0


def is_refused(kind: str, folder: Path, column: pa.Array) -> None:
    """With its values, and with nulls alone."""
    for values in [column] if pa.types.is_union(column.type) else [column, nulls(3, column.type)]:
        with pytest.raises((ValueError, TypeError), match=r"^somewhere: column 'x[.a-z]*': "), _quietly():
            writer_for(kind, str(folder)).write(InterleavedBatch(table_with(x=values), ("somewhere",)))
        assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("family", ALIKE)
def test_types_that_all_formats_hold(tmp_path: Path, family: str, kind: str) -> None:
    """Each in a column of its name, beside one with nulls alone."""
    columns = ALIKE[family]
    empty = {f"no {name}": nulls(3, column.type) for name, column in columns.items()}
    comes_back(kind, tmp_path, table_with(**columns, **empty))


@pytest.mark.parametrize(("name", "kind", "refused"), PARTLY_CASES)
def test_types_that_some_formats_hold(tmp_path: Path, name: str, kind: str, refused: bool) -> None:
    column, _ = PARTLY[name]
    if refused:
        is_refused(kind, tmp_path, column)
    else:
        comes_back(kind, tmp_path, table_with(x=column, none=nulls(3, column.type)))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", REFUSED)
def test_types_that_no_format_holds(tmp_path: Path, name: str, kind: str) -> None:
    is_refused(kind, tmp_path, REFUSED[name])


@pytest.mark.parametrize("kind", FORMATS)
def test_from_the_parquet_of_others(tmp_path: Path, kind: str) -> None:
    types = {name: column for family in ALIKE.values() for name, column in family.items()}
    names = ["map", "map with other names", "list of maps", "list of JSON", "dictionary of numbers", "UUID"]
    (tmp_path / "in").mkdir()
    pq.write_table(table_with(**{name: types[name] for name in names}), tmp_path / "in" / "x.parquet")
    for source, target in (("in", "out"), ("out", "again")):
        arguments = [str(tmp_path / source), str(tmp_path / target), "--to", kind, "--workers", "1"]
        assert main(["convert", *arguments]) == 0
    assert main(["verify", *(str(tmp_path / folder) for folder in ("in", "out", "again"))]) == 0


VALUES = {
    "truth": (pa.bool_(), True),
    "int": (pa.int32(), -7),
    "unsigned": (pa.uint64(), 2**63),
    "float": (pa.float32(), 0.1),
    "text": (pa.string(), "é"),
    "bytes": (pa.binary(), b"\xff"),
    "decimal": (pa.decimal128(9, 2), Decimal("1.25")),
    "date": (pa.date32(), 19000),
    "timestamp": (pa.timestamp("us", "UTC"), 1_700_000_000_000_001),
    "duration": (pa.duration("ms"), 1500),
}
NESTINGS: dict[str, Callable[[pa.Field], pa.DataType]] = {
    "struct": lambda field: pa.struct([field.with_name("item")]),
    "list": pa.list_,
    "large": pa.large_list,
    "fixed": lambda field: pa.list_(field, 2),
    "map": lambda field: pa.map_(pa.string(), field.with_name("value")),
    "lists": lambda field: pa.list_(field.with_type(pa.list_(field, 2))),
    "fixed_in_struct": lambda field: pa.struct([pa.field("v", pa.list_(field, 2))]),
    "fixed_in_map": lambda field: pa.map_(pa.string(), pa.field("value", pa.list_(field, 2))),
    "fixed_in_fixed": lambda field: pa.list_(field.with_type(pa.list_(field, 1)), 1),
}


def _filled(type_: pa.DataType, value: object) -> object:
    if pa.types.is_struct(type_):
        return {field.name: _filled(field.type, value) for field in type_}
    if pa.types.is_map(type_):
        return [("k", _filled(type_.item_type, value))]
    if pa.types.is_fixed_size_list(type_):
        return [_filled(type_.value_type, value)] * type_.list_size
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_filled(type_.value_type, value), _filled(type_.value_type, value)]
    return value


def _nested(values: Sequence[str], items: str, nullable: bool) -> pa.Table:
    """A column of each of these values in each nesting, whose list items have this name."""
    table = batch_of([item("a"), item("b")]).data
    for (value, (inner, content)), (nesting, nested) in product(
        ((value, VALUES[value]) for value in values), NESTINGS.items()
    ):
        type_ = nested(pa.field(items, inner, nullable=nullable))
        column = pa.array([_filled(type_, content)] * 2, type_)
        table = table.append_column(f"{nesting} of {value}", column)
    return table


OTHERS = [value for value in VALUES if value != "float"]


@pytest.mark.parametrize("values", [["float"], OTHERS], ids=["float", "others"])
@pytest.mark.parametrize(("items", "nullable"), [("item", True), ("element", True), ("l", False)])
def test_what_formats_call_the_items_of_lists_is_no_difference(
    tmp_path: Path, values: list[str], items: str, nullable: bool
) -> None:
    """Written by pyarrow, lance and our writers, each with names of its own."""
    import lance

    table = _nested(values, items, nullable)
    for folder in ("parquet", "of_others"):
        (tmp_path / folder).mkdir()
    pq.write_table(table, tmp_path / "parquet" / "x.parquet")
    pq.write_table(
        _nested(values, "item", nullable),
        tmp_path / "of_others" / "x.parquet",
        use_compliant_nested_type=False,
    )
    if values == ["float"] and nullable:  # Lance panics on others, and forgets that items are never null
        lance.write_dataset(table, tmp_path / "by_lance.lance", data_storage_version="2.2")
    for kind in FORMATS:
        (report,) = write(kind, tmp_path / f"our_{kind}", InterleavedBatch(table, partition="x")).partitions
        assert derive(kind, report.uri, report.partition).digest == report.digest
    assert main(["verify", *sorted(map(str, tmp_path.iterdir()))]) == 0


@pytest.mark.parametrize("kind", ["parquet", "lance"])  # every format gives the types that it was given
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.array([[1, 3]], pa.list_(pa.int32(), 2))),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.array([[1, 2]], pa.list_(pa.int64(), 2))),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.array([[1, 2]], pa.list_(pa.int32()))),
        (pa.array([[1, 2]], pa.list_(pa.int32())), pa.array([[1, None]], pa.list_(pa.int32()))),
        (pa.array([[1.0]], pa.list_(pa.float32())), pa.array([[1.0]], pa.list_(pa.float64()))),
        (pa.array([[5]], pa.list_(pa.timestamp("us"))), pa.array([[5]], pa.list_(pa.timestamp("ms")))),
        (pa.array([[5]], pa.list_(pa.timestamp("us"))), pa.array([[5]], pa.list_(pa.timestamp("us", "UTC")))),
        (pa.array([["a"]], pa.list_(pa.string())), pa.array([[b"a"]], pa.list_(pa.binary()))),
        (pa.array([{"item": 1}], pa.struct([("item", pa.int32())])),
         pa.array([{"element": 1}], pa.struct([("element", pa.int32())]))),
        (pa.array([[{"item": 1}]], pa.list_(pa.struct([("item", pa.int32())]))),
         pa.array([[{"element": 1}]], pa.list_(pa.struct([("element", pa.int32())])))),
        (pa.array([[("k", [1])]], pa.map_(pa.string(), pa.list_(pa.int32(), 1))),
         pa.array([[("k", [2])]], pa.map_(pa.string(), pa.list_(pa.int32(), 1)))),
        (pa.array([[1]], pa.list_(pa.int32())),
         pa.array([[1]], pa.list_(pa.field("item", pa.int32(), nullable=False)))),
    ],
)  # fmt: skip
def test_what_truly_differs_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one: pa.Array, other: pa.Array, kind: str
) -> None:
    for name, column in (("one", one), ("other", other)):
        table = batch_of([item("a")]).data.append_column("x", column)
        write(kind, tmp_path / name, InterleavedBatch(table, partition="p"))
    assert main(["verify", str(tmp_path / "one"), str(tmp_path / "other")]) == 1
    assert "sample 'a', position -1, column 'x': " in capsys.readouterr().err


@pytest.mark.parametrize("items", ["item", "element"])
def test_a_table_takes_further_partitions_with_lists_of_a_size(tmp_path: Path, items: str) -> None:
    """Lance calls the items by a name of its own; that changes no type of the table."""
    import lance

    versions = []
    for partition in "pqr":
        type_ = pa.list_(pa.field(items, pa.float32()), 2)
        column = pa.array([[1, 2], None], type_)
        table = batch_of([item(partition), item(f"{partition}2")]).data.append_column("x", column)
        (report,) = write("lance", tmp_path, InterleavedBatch(table, partition=partition)).partitions
        assert derive("lance", report.uri, partition).digest == report.digest
        versions.append(lance.dataset(report.uri).version)
    assert read("lance", tmp_path).schema.field("x").type == pa.list_(pa.field("element", pa.float32()), 2)
    assert versions[2] - versions[1] == versions[1] - versions[0]


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, (_, refusing) in PARTLY.items() for kind in sorted(refusing)]
)
def test_convert_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    write("arrow_cache", tmp_path / "in", InterleavedBatch(table_with(x=PARTLY[name][0]), partition="p"))
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--to", kind, "--workers", "1"]) == 1
    err = capsys.readouterr().err
    assert re.fullmatch(rf"mm-assets: {tmp_path}/in/p/_metadata\.json: column 'x[.a-z]*': [^\n]*\n", err)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", FORMATS)
def test_an_extension_that_nobody_has_registered(tmp_path: Path, kind: str) -> None:
    """It is a column of its storage type, with what it is in the field's metadata."""
    field = pa.field(
        "x", pa.int64(), metadata={"ARROW:extension:name": "geo.point", "ARROW:extension:metadata": ""}
    )
    table = batch_of([item("a")]).data.append_column(field, pa.array([1]))
    write(kind, tmp_path, InterleavedBatch(table))
    same(read(kind, tmp_path), table)
