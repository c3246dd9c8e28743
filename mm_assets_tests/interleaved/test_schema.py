"""The schema rules of the seeds."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pyarrow as pa
import pytest

from mm_assets.interleaved import (
    INTERLEAVED_SCHEMA,
    RESERVED_COLUMNS,
    InterleavedParquetReader,
    InterleavedParquetWriter,
    InterleavedWebdatasetReader,
    SchemaMismatch,
    align_table,
    reconcile_schema,
    resolve_schema,
)
from mm_assets.model.json_codec import JSON_ENCODING, is_json, json_field
from mm_assets.model.schema import canonical_schema, order_columns


def test_the_interleaved_schema() -> None:
    assert [(f.name, f.type, f.nullable) for f in INTERLEAVED_SCHEMA] == [
        ("sample_id", pa.string(), False),
        ("position", pa.int32(), False),
        ("modality", pa.string(), False),
        ("content_type", pa.string(), True),
        ("text_content", pa.string(), True),
        ("binary_content", pa.large_binary(), True),
        ("source_ref", pa.string(), True),
        ("materialize_error", pa.string(), True),
    ]
    assert tuple(INTERLEAVED_SCHEMA.names) == RESERVED_COLUMNS


def test_reconcile_gives_reserved_columns_their_types() -> None:
    found = reconcile_schema(
        pa.schema(
            [
                ("position", pa.int64()),
                ("sample_id", pa.dictionary(pa.int8(), pa.string())),
                ("binary_content", pa.binary()),
            ]
        )
    )
    assert found.names == ["position", "sample_id", "binary_content"]
    assert found.types == [pa.int32(), pa.string(), pa.large_binary()]
    assert not found.field("sample_id").nullable


def test_reconcile_never_makes_large_text_small() -> None:
    found = reconcile_schema(
        pa.schema(
            [("text_content", pa.large_string()), ("mine", pa.large_string()), ("raw", pa.large_binary())]
        )
    )
    assert found.types == [pa.large_string(), pa.large_string(), pa.large_binary()]


def test_reconcile_leaves_passthrough_alone_but_for_dictionaries() -> None:
    types = [pa.int8(), pa.list_(pa.string()), pa.timestamp("s", "UTC"), pa.struct([("a", pa.int8())])]
    schema = pa.schema(
        [pa.field(f"c{i}", t, metadata={"k": "v"}) for i, t in enumerate(types)], metadata={"m": "n"}
    )
    assert reconcile_schema(schema).equals(schema, check_metadata=True)
    assert reconcile_schema(pa.schema([("d", pa.dictionary(pa.int8(), pa.int64()))])).types == [pa.int64()]


def test_resolve() -> None:
    assert resolve_schema() is None
    assert resolve_schema(None, {}) is None
    mine = pa.schema([("sample_id", pa.large_string())])
    assert resolve_schema(mine) is mine
    merged = resolve_schema(schema_overrides={"position": pa.int64(), "score": pa.float32()})
    assert merged is not None
    assert merged.names == [*RESERVED_COLUMNS, "score"]
    assert merged.field("position").type == pa.int64()
    assert not merged.field("position").nullable
    assert merged.field("score").type == pa.float32()


@pytest.mark.parametrize(
    "make",
    [
        lambda **both: resolve_schema(**both),
        lambda **both: InterleavedParquetReader("x", **both),
        lambda **both: InterleavedWebdatasetReader("x", **both),
        lambda **both: InterleavedParquetWriter("x", **both),
    ],
)
def test_both_schemas_warn_where_the_user_stands_and_schema_wins(make) -> None:  # type: ignore[no-untyped-def]
    mine = pa.schema([("sample_id", pa.string())])
    with pytest.warns(UserWarning, match="schema= is used") as caught:
        made = make(schema=mine, schema_overrides={"a": pa.int8()})
    assert caught[0].filename == __file__
    assert len(caught) == 1
    assert (made if isinstance(made, pa.Schema) else made.target) is mine


def test_align_pads_reorders_and_drops() -> None:
    table = pa.table({"b": [1, 2], "gone": ["x", "y"], "a": ["p", None]})
    target = pa.schema([("a", pa.string()), ("new", pa.list_(pa.int8())), ("b", pa.int64())])
    aligned = align_table(table, target)
    assert aligned.schema.equals(target, check_metadata=True)
    assert aligned.to_pydict() == {"a": ["p", None], "new": [None, None], "b": [1, 2]}


def test_align_takes_the_target_as_it_stands() -> None:
    """Not reconciled again: a target may ask for other types of reserved columns."""
    target = pa.schema([pa.field("sample_id", pa.large_string()), pa.field("position", pa.int64())])
    aligned = align_table(pa.table({"sample_id": ["a"], "position": pa.array([1], pa.int32())}), target)
    assert aligned.schema.equals(target, check_metadata=True)


def test_align_gives_back_the_very_table_when_nothing_is_to_do() -> None:
    table = pa.table({"a": [1]})
    assert align_table(table, table.schema) is table


def test_reserved_columns_are_cast_unsafely_and_passthrough_safely() -> None:
    table = pa.table({"position": [1.9, 2.0], "mine": [1.9, 2.0]})
    assert align_table(table.select(["position"]), pa.schema([("position", pa.int32())])).to_pydict() == {
        "position": [1, 2]
    }
    with pytest.raises(SchemaMismatch, match="column 'mine'"):
        align_table(table, pa.schema([("mine", pa.int32())]))


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (pa.array([2**40]), pa.int32()),
        (pa.array([-1]), pa.uint8()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array(["x"]), pa.int64()),
        (pa.array([[1]]), pa.int64()),
        (pa.array([2**62], pa.timestamp("s")), pa.timestamp("ns")),
    ],
)
def test_overflow_names_the_column(values: pa.Array, type_: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="the_column"):
        align_table(pa.table({"the_column": values}), pa.schema([("the_column", type_)]))


def test_dictionaries_are_unwrapped_on_the_way() -> None:
    table = pa.table({"a": pa.array(["1", None, "1"]).dictionary_encode()})
    assert align_table(table, pa.schema([("a", pa.int64())])).to_pydict() == {"a": [1, None, 1]}


def test_a_column_becomes_json_text() -> None:
    table = pa.table(
        {"a": pa.array([1, None]), "b": pa.array([["x"], None]), "c": pa.array(["x", '"']), "n": pa.nulls(2)}
    )
    aligned = align_table(table, pa.schema([json_field(name) for name in "abcn"]))
    assert aligned.to_pydict() == {
        "a": ["1", None],
        "b": ['["x"]', None],
        "c": ['"x"', '"\\""'],
        "n": [None, None],
    }
    assert all(is_json(field) for field in aligned.schema)


def test_json_text_is_not_encoded_twice() -> None:
    table = pa.table([pa.array(['{"a":1}'])], schema=pa.schema([json_field("a")]))
    assert align_table(table, pa.schema([json_field("a")])).to_pydict() == {"a": ['{"a":1}']}
    assert align_table(table, pa.schema([pa.field("a", pa.string())])).to_pydict() == {"a": ['{"a":1}']}


def test_order_and_canonical() -> None:
    schema = pa.schema(
        [
            pa.field("z", pa.int8()),
            pa.field("modality", pa.large_string()),
            pa.field("sample_id", pa.large_string()),
        ]
    )
    assert order_columns(schema).names == ["sample_id", "modality", "z"]
    canonical = canonical_schema(schema)
    assert canonical.names == [*RESERVED_COLUMNS, "z"]
    assert canonical.field("modality").equals(INTERLEAVED_SCHEMA.field("modality"))


def test_json_mark_survives_reconcile_and_canonical() -> None:
    schema = pa.schema([pa.field("j", pa.string(), metadata=JSON_ENCODING)])
    assert is_json(reconcile_schema(schema).field("j"))
    assert is_json(canonical_schema(schema).field("j"))


def test_no_warning_for_one_argument() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_schema(pa.schema([]), None)
        resolve_schema(None, {"a": pa.int8()})


def test_the_data_model_imports_no_dagster_and_no_heavy_library() -> None:
    code = (
        "import sys, mm_assets.interleaved as i, mm_assets.formats.writer, mm_assets.filters.registry\n"
        "assert i.InterleavedParquetReader and i.InterleavedWebdatasetWriter and i.materialize\n"
        "print([m for m in ('dagster', 'lance', 'torch', 'ray', 'cv2', 'pandas') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("value", [pa.null(), pa.struct([("a", pa.null())]), pa.list_(pa.null(), 2)])
def test_lists_of_a_size_that_hold_nulls_alone(value: pa.DataType) -> None:
    """Arrow's cast, which giving their items another name would need, loses their values."""
    rows = pa.table({"x": pa.array([[[None, None]], None, []], pa.list_(pa.list_(value, 2)))})
    aligned = align_table(rows, reconcile_schema(rows.schema))
    aligned.validate(full=True)
    assert aligned.column("x").to_pylist() == rows.column("x").to_pylist()
