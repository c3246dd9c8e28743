"""Schemas that differ between partitions: what the table becomes, and that every value survives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from mm_assets.formats.lance import from_storage
from mm_assets.formats.lance.fragments import SchemaNotPlanned, plan_schema
from mm_assets.formats.lance.table import LanceTable
from mm_assets.model.json_codec import json_field
from mm_assets.model.schema import INTERLEAVED_SCHEMA, RESERVED_COLUMNS, SchemaMismatch, align_table
from mm_assets_tests.formats.lance.tables import column, content, expected, names, rows, write

BIG = 2**53 + 1


@pytest.fixture
def table(tmp_path: Path) -> LanceTable:
    return LanceTable(tmp_path / "items.lance")


def planned_commit(table: LanceTable, parts: dict[str, pa.Table]) -> int:
    plan = plan_schema(table.uri, [part.schema for part in parts.values()])
    return table.commit([write(table.uri, name, align_table(part, plan)) for name, part in parts.items()])


def part(name: str, kind: pa.DataType | pa.Field, values: Sequence[Any], mark: str = "") -> pa.Table:
    return rows(names(name), {"x": (kind, values)}, mark)


J = json_field("x")
K = pa.struct([("k", pa.int64())])
LARGE = pa.large_string()
EXACT = 2**53
F64 = pa.float64()
MATRIX = {
    # case: (first type, its values, second type, its values, type afterwards, first's and second's values
    # afterwards)
    "null to text": (
        pa.null(),
        [None] * 3,
        pa.string(),
        ["a", None, ""],
        pa.string(),
        [None] * 3,
        ["a", None, ""],
    ),
    "text, then null": (
        pa.string(),
        ["a", None, ""],
        pa.null(),
        [None] * 3,
        pa.string(),
        ["a", None, ""],
        [None] * 3,
    ),
    "null to struct": (
        pa.null(),
        [None] * 3,
        K,
        [{"k": 1}, None, {"k": None}],
        None,
        [None] * 3,
        [{"k": 1}, None, {"k": None}],
    ),
    "null to list": (
        pa.null(),
        [None] * 3,
        pa.list_(pa.string()),
        [["a"], None, []],
        None,
        [None] * 3,
        [["a"], None, []],
    ),
    "int to float": (
        pa.int64(),
        [1, None, -EXACT],
        F64,
        [0.5, None, 1e300],
        F64,
        [1.0, None, -float(EXACT)],
        [0.5, None, 1e300],
    ),
    "float, then int": (
        pa.float64(),
        [0.5, None, 1.0],
        pa.int64(),
        [1, None, 2],
        pa.float64(),
        [0.5, None, 1.0],
        [1.0, None, 2.0],
    ),
    "big int to JSON": (
        pa.int64(),
        [BIG, None, 1],
        pa.float64(),
        [0.5, None, 1.0],
        J,
        [str(BIG), None, "1"],
        ["0.5", None, "1.0"],
    ),
    "text to JSON": (
        pa.string(),
        ['a"b', None, ""],
        pa.int64(),
        [1, None, BIG],
        J,
        ['"a\\"b"', None, '""'],
        ["1", None, str(BIG)],
    ),
    "bool to JSON": (
        pa.bool_(),
        [True, None, False],
        pa.string(),
        ["x", None, ""],
        J,
        ["true", None, "false"],
        ['"x"', None, '""'],
    ),
    "list to JSON": (
        pa.list_(pa.int64()),
        [[1], None, []],
        pa.string(),
        ["x", None, ""],
        J,
        ["[1]", None, "[]"],
        ['"x"', None, '""'],
    ),
    "JSON, then text": (
        J,
        ["[1]", None, '"a"'],
        pa.string(),
        ["x", None, ""],
        J,
        ["[1]", None, '"a"'],
        ['"x"', None, '""'],
    ),
    "null to JSON": (pa.null(), [None] * 3, J, ["[1]", None, "NaN"], J, [None] * 3, ["[1]", None, "NaN"]),
    "int32 to int64": (
        pa.int32(),
        [1, None, -1],
        pa.int64(),
        [BIG, None, 0],
        pa.int64(),
        [1, None, -1],
        [BIG, None, 0],
    ),
    "string to large": (
        pa.string(),
        ["a", None, ""],
        LARGE,
        ["b", None, ""],
        LARGE,
        ["a", None, ""],
        ["b", None, ""],
    ),
    "struct to JSON": (
        K,
        [{"k": 1}, None, {"k": None}],
        pa.int64(),
        [1, None, 2],
        J,
        ['{"k":1}', None, '{"k":null}'],
        ["1", None, "2"],
    ),
    "view to JSON": (
        pa.string_view(),
        ["a", None, ""],
        pa.int64(),
        [1, None, 2],
        J,
        ['"a"', None, '""'],
        ["1", None, "2"],
    ),
}


@pytest.mark.parametrize("case", MATRIX)
@pytest.mark.parametrize("state", ["plain", "deleted", "compacted"])
def test_every_value_survives_evolution(table: LanceTable, case: str, state: str) -> None:
    first, values, second, more, becomes, after, after_more = MATRIX[case]
    old, new = part("a", first, values), part("b", second, more)
    planned_commit(table, {"a": old, "c": part("c", first, values)})
    table.ensure_indexes()
    if state == "deleted":
        table.dataset().delete("sample_id = 'c/1'")
    if state == "compacted":
        table.dataset().optimize.compact_files()
        table.ensure_indexes()
    before = table.dataset().version
    stats = table.dataset().stats.index_stats("sample_id_idx")["num_indexed_rows"]
    version = planned_commit(table, {"b": new})
    changed = not table.schema().field("x").equals(old.schema.field("x"), check_metadata=True)
    assert version == before + 1 + changed
    field = table.schema().field("x")
    if becomes is None:
        becomes = second
    if isinstance(becomes, pa.Field):
        assert field.equals(becomes, check_metadata=True)
    else:
        assert (field.type, field.metadata) == (becomes, None)
    dataset = table.dataset()
    assert dataset.schema.equals(dataset.to_table().schema, check_metadata=True)
    wanted = {
        f"{name}/{i}": v
        for name, vs in (("a", after), ("b", after_more), ("c", after))
        for i, v in enumerate(vs)
    }
    if state == "deleted":
        del wanted["c/1"]
    assert column(table, "x") == wanted
    assert column(table, "x", filter="x IS NOT NULL") == {i: v for i, v in wanted.items() if v is not None}
    assert column(table, "x", filter="sample_id = 'a/0'") == {"a/0": wanted["a/0"]}
    for sample_id, value in wanted.items():
        if isinstance(value, str):
            quoted = value.replace("'", "''")
            assert sample_id in column(table, "x", filter=f"x = '{quoted}'")
    # The index of the rows that were there is kept, and used.
    assert dataset.stats.index_stats("sample_id_idx")["num_indexed_rows"] == stats
    assert "ScalarIndexQuery" in dataset.scanner(filter="sample_id = 'a/1'").explain_plan()
    # A reader of the version between sees whole data as well.
    for middle in range(before, version + 1):
        at = lance.dataset(table.uri, version=middle)
        assert at.to_table().num_rows == at.count_rows() in (len(wanted) * 2, len(wanted) * 2 - 6)
    dataset.optimize.compact_files()
    table.ensure_indexes()
    assert column(table, "x") == wanted
    table.dataset().validate()
    planned_commit(table, {"a": part("a", first, values, mark="again")})
    assert column(table, "x") == wanted
    others = [new, part("c", first, values)]
    gone = expected(rows(["c/1"])) if state == "deleted" else expected()
    if state != "deleted":
        assert content(table) == expected(part("a", first, values, mark="again"), *others) - gone


def test_columns_come_in_the_order_first_seen(table: LanceTable) -> None:
    url, n, late = (pa.field("url", pa.string()), pa.field("n", pa.null()), pa.field("late", pa.bool_()))
    planned_commit(table, {"a": rows(names("a"), {"url": (url, ["u"] * 3), "n": (n, [None] * 3)})})
    planned_commit(
        table, {"b": rows(names("b"), {"late": (late, [True] * 3), "n": (pa.float64(), [1.5] * 3)})}
    )
    assert table.schema().names == [*RESERVED_COLUMNS, "url", "n", "late"]
    assert table.dataset().to_table().column_names == table.schema().names
    assert column(table, "n") == {**dict.fromkeys(names("a")), **dict.fromkeys(names("b"), 1.5)}


def test_added_columns_rewrite_no_data(table: LanceTable) -> None:
    planned_commit(table, {"a": rows(names("a"), {"n": (pa.null(), [None] * 3)})})
    files = {f.path for d in table.dataset().get_fragments() for f in d.metadata.files}
    new = rows(names("b"), {"n": (pa.string(), ["x"] * 3), "m": (pa.int64(), [1, 2, 3])})
    planned_commit(table, {"b": new})
    (old,) = (d.metadata for d in table.dataset().get_fragments() if d.fragment_id == 0)
    assert {f.path for f in old.files} == files
    assert len(os_files(table)) == 2


def os_files(table: LanceTable) -> list[Path]:
    return list((Path(table.uri) / "data").iterdir())


def test_several_changes_are_one_version(table: LanceTable) -> None:
    first = {"i": (pa.int64(), [1, 2, 3]), "n": (pa.null(), [None] * 3), "t": (pa.string(), ["a", "b", None])}
    second = {
        "t": (pa.int64(), [1, 2, 3]),
        "n": (pa.bool_(), [True] * 3),
        "i": (pa.float64(), [0.5] * 3),
        "z": (pa.date32(), [0] * 3),
    }
    version = planned_commit(table, {"a": rows(names("a"), first)})
    assert planned_commit(table, {"b": rows(names("b"), second)}) == version + 2
    got = (
        table.dataset()
        .to_table(filter="position = -1 AND sample_id = 'a/1'", columns=["i", "n", "t", "z"])
        .to_pylist()
    )
    assert got == [{"i": 2.0, "n": None, "t": '"b"', "z": None}]


def test_unpadded_sets_fit_and_stay_in_fast_files(table: LanceTable) -> None:
    struct = pa.struct([("k", pa.int64())])
    planned_commit(table, {"a": rows(names("a"), {"s": (struct, [{"k": 1}, None, {"k": None}])})})
    plain = rows(names("b"), {"later": (pa.int64(), [1, 2, 3])}).select(
        [*reversed(RESERVED_COLUMNS), "later"]
    )
    table.commit([write(table.uri, "b", plain)])
    versions = [[f.file_minor_version for f in d.metadata.files] for d in table.dataset().get_fragments()]
    assert versions == [[2], [0]]
    assert column(table, "s", filter="sample_id LIKE 'b/%'") == dict.fromkeys(names("b"))
    assert column(table, "later") == {**dict.fromkeys(names("a")), "b/0": 1, "b/1": 2, "b/2": 3}
    assert content(table) == expected(rows(names("a")), rows(names("b")))


def test_a_set_in_another_type_is_refused(table: LanceTable) -> None:
    planned_commit(table, {"a": part("a", pa.float64(), [0.5, 1.0, None])})
    version = table.dataset().version
    with pytest.raises(
        SchemaNotPlanned, match=r"partition 'b': column 'x' was written as int64.*needs double.*plan_schema"
    ):
        table.commit([write(table.uri, "b", part("b", pa.int64(), [1, 2, 3]))])
    with pytest.raises(SchemaNotPlanned, match=r"column 'x' was written as string.*needs JSON text"):
        table.commit([write(table.uri, "b", part("b", pa.string(), ["a"] * 3))])
    with pytest.raises(SchemaNotPlanned, match=r"'c'.*column 'x' was written as int64"):
        sets = [
            write(table.uri, "b", part("b", J, ["1"] * 3)),
            write(table.uri, "c", part("c", pa.int64(), [1, 2, 3])),
        ]
        table.commit(sets)
    with pytest.raises(SchemaNotPlanned, match="partition 'd' has no column 'position'"):
        table.commit([write(table.uri, "d", rows(names("d")).drop_columns(["position"]))])
    assert table.dataset().version == version


def test_inexact_integers_of_the_table_stop_a_commit_that_was_not_planned(table: LanceTable) -> None:
    planned_commit(table, {"a": part("a", pa.int64(), [BIG, 1, None])})
    version = table.dataset().version
    with pytest.raises(SchemaMismatch, match="'x'"):
        table.commit([write(table.uri, "b", part("b", pa.float64(), [0.5] * 3))])
    assert table.dataset().version == version
    assert column(table, "x") == {"a/0": BIG, "a/1": 1, "a/2": None}


def test_field_metadata_survives(table: LanceTable) -> None:
    field = pa.field("x", pa.string(), metadata={"unit": "m", "mm_assets:encoding": "json"})
    planned_commit(table, {"a": rows(names("a"), {"x": (field, ["1", None, "{}"])})})
    planned_commit(
        table, {"b": rows(names("b"), {"y": (pa.field("y", pa.int8(), metadata={"k": "v"}), [1, 2, 3])})}
    )
    dataset = table.dataset()
    wanted = pa.schema([*INTERLEAVED_SCHEMA, field, pa.field("y", pa.int8(), metadata={"k": "v"})])
    for schema in (
        dataset.schema,
        dataset.to_table().schema,
        from_storage(dataset.to_table()).schema,
        table.schema(),
    ):
        assert schema.equals(wanted, check_metadata=True)


def test_a_plan_changes_nothing(table: LanceTable) -> None:
    schema = rows(names("a"), {"x": (pa.int64(), [1, 2, 3])}).schema
    assert plan_schema(table.uri, [schema]).equals(schema, check_metadata=True)
    assert not table.exists()
    planned_commit(table, {"a": part("a", pa.int64(), [1, 2, 3])})
    version = table.dataset().version
    floats = rows(names("b"), {"y": (pa.bool_(), [True] * 3), "x": (pa.float64(), [1, 2, 3])}).schema
    plan = plan_schema(table.uri, [floats])
    assert plan.names == [*RESERVED_COLUMNS, "x", "y"] and plan.field("x").type == pa.float64()
    assert table.dataset().version == version
