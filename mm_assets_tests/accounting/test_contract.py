"""One type a column for all shards: free until a shard is published, then growing only; never at the cost of
a value.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.accounting.contract import Published, SchemaContract
from mm_assets.accounting.survey import RequiredType, ShardColumns, type_name
from mm_assets.model import json_codec
from mm_assets.model.json_codec import FieldTally, build_column, is_json, json_field
from mm_assets.model.schema import INTERLEAVED_SCHEMA, SchemaMismatch, align_table
from mm_assets_tests.interleaved.arrow_values import TEXT, arrow_types, columns, json_values

JSON = "json"
BIG = 2**53 + 1

HINT = "MM_SCHEMA_CHANGES=widen makes the column that, in all shards"


def raw(**values: Any) -> ShardColumns:
    """A raw shard whose samples have these values in a column each (a list: several)."""
    tallies = {}
    for name, given_ in values.items():
        tally = tallies[name] = FieldTally()
        for value in given_ if isinstance(given_, list) else [given_]:
            tally.observe(value)
    return ShardColumns(tallies)


def typed(**types: Any) -> ShardColumns:
    """A shard whose samples declare the types of their columns."""
    return ShardColumns(
        {}, pa.schema([json_field(name) if t == JSON else pa.field(name, t) for name, t in types.items()])
    )


def typed_int(value: int) -> ShardColumns:
    """A shard with a declared integer in column ``x``."""
    return ShardColumns({}, typed(x=pa.int64()).declared, raw(x=value).tallies)


def landed(columns: ShardColumns, **types: Any) -> Published:
    """The output of a shard, written in ``types``; of other columns, in those that the shard alone needs."""
    fields = {name: need.field for name, need in columns.required_types().items()} | {
        f.name: f for f in typed(**types).declared
    }
    return Published(pa.schema([*INTERLEAVED_SCHEMA, *fields.values()]), columns)


def kind(
    shards: dict[str, ShardColumns], published: dict[str, Published] | None = None, widen: bool = False
) -> str:
    """The contract's type for column ``x``."""
    return type_name(SchemaContract.derive(shards, published or {}, widen).columns["x"].required_type.field)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (raw(x=1), raw(x=2), "int64"),
        (raw(x=None), raw(x=None), "null"),
        (raw(x=None), raw(x="a"), "string"),
        (raw(x=None), raw(x=[[1]]), JSON),
        (raw(x=1), raw(x=1.5), "double"),
        (raw(x=2**53), raw(x=1.5), "double"),
        (raw(x=BIG), raw(x=1.5), JSON),
        (raw(x=BIG), raw(x=[1, 1.5]), JSON),
        (raw(x=BIG), raw(x=1), "int64"),
        (raw(x=2**63), raw(x=1), JSON),
        (raw(x=True), raw(x=1), JSON),
        (raw(x="a"), raw(x=1), JSON),
        (raw(x={}), raw(x="a"), JSON),
        (typed(x=pa.int8()), raw(x=1), "int64"),
        (typed(x=pa.int8()), raw(x=1.5), "double"),
        (typed(x=pa.int64()), raw(x=1.5), "double"),
        (typed(x=pa.float32()), raw(x=BIG), JSON),
        (typed(x=pa.float32()), raw(x=1), "double"),
        (typed(x=pa.large_string()), raw(x="a"), "large_string"),
        (typed(x=pa.list_(pa.int8())), raw(x=None), "list<item: int8>"),
        (typed(x=pa.list_(pa.int8())), raw(x=[[1]]), JSON),
        (typed(x=JSON), raw(x="a"), JSON),
        (typed(x=pa.timestamp("s")), typed(x=pa.timestamp("ms")), JSON),
        (ShardColumns(raw(x=BIG).tallies, typed(x=pa.float64()).declared), raw(x=None), JSON),
        (typed_int(2**53), typed(x=pa.float64()), "double"),
        (typed_int(BIG), typed(x=pa.float64()), JSON),
        (typed_int(BIG), raw(x=1.5), JSON),
        (typed_int(BIG), raw(x=1), "int64"),
        (ShardColumns({}, typed(x=pa.float64()).declared, raw(x=BIG).tallies), raw(x=None), JSON),
        (raw(), raw(x=1), "int64"),
    ],
)
def test_unpublished_columns_are_reconciled_freely(
    one: ShardColumns, other: ShardColumns, expected: str
) -> None:
    for shards in ({"a": one, "b": other}, {"a": other, "b": one}):
        assert kind(shards) == expected


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (landed(raw(x=None)), raw(x="a"), "string"),
        (landed(raw(x=None)), raw(x=[1, "a"]), JSON),
        (landed(raw(x=1)), raw(x=1.5), "double"),
        (landed(raw(x=1)), typed(x=pa.float32()), "double"),
        (landed(raw(x="a")), typed(x=pa.large_string()), "large_string"),
        (landed(typed(x=pa.binary())), typed(x=pa.large_binary()), "large_binary"),
        (landed(typed(x=pa.int8())), raw(x=1), "int64"),
        (landed(typed(x=pa.uint8())), typed(x=pa.uint16()), "uint16"),
        (landed(typed(x=pa.float32())), raw(x=1), "double"),
        (landed(raw(x=1), x=pa.float64()), raw(x=1.5), "double"),
        # narrower than the contract
        (landed(raw(x=1.5)), raw(x=1), "double"),
        (landed(raw(x=1.5)), raw(x=None), "double"),
        (landed(raw(x=BIG)), typed(x=pa.int8()), "int64"),
        (landed(typed(x=pa.large_string())), raw(x="a"), "large_string"),
        (landed(raw(x=1), x=JSON), raw(x=1.5), JSON),
        (landed(raw(x=[[1]])), raw(x="a"), JSON),
        (landed(raw(x=1), x=JSON), raw(x=None), JSON),
    ],
)
def test_published_columns_grow_without_loss(before: Published, now: ShardColumns, expected: str) -> None:
    contract = SchemaContract.derive({"b": now}, {"a": before})
    admission = contract.admit("b", now)
    assert not admission.refused
    assert [type_name(f) for f in admission.fields] == [expected]
    assert kind({"a": before.columns, "b": now}, {"a": before}) == expected


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (landed(raw(x=1)), raw(x="a"), "string in this shard, int64 in shard 'a' (contract: int64)"),
        (landed(raw(x="a")), raw(x=1), "int64 in this shard, string in shard 'a' (contract: string)"),
        (landed(raw(x=1)), raw(x=True), "bool in this shard, int64 in shard 'a' (contract: int64)"),
        (
            landed(raw(x=1.5)),
            raw(x=BIG),
            "int64 beyond 2^53 in this shard, double in shard 'a' (contract: double)",
        ),
        (
            landed(raw(x=BIG)),
            raw(x=1.5),
            "double in this shard, int64 beyond 2^53 in shard 'a' (contract: int64)",
        ),
        (landed(raw(x=1)), raw(x=2**63), "json in this shard, int64 in shard 'a' (contract: int64)"),
        (landed(raw(x="a")), typed(x=JSON), "json in this shard, string in shard 'a' (contract: string)"),
        (
            landed(typed(x=pa.date32())),
            raw(x=[[1]]),
            "json in this shard, date32[day] in shard 'a' (contract: date32[day])",
        ),
        (landed(typed(x=pa.uint8())), raw(x=1), "int64 in this shard, uint8 in shard 'a' (contract: uint8)"),
    ],
)
def test_what_would_lose_is_refused_or_widened_on_demand(
    before: Published, now: ShardColumns, says: str
) -> None:
    own = type_name(before.schema.field("x"))
    admission = SchemaContract.derive({"b": now}, {"a": before}).admit("b", now)
    assert admission.refused == {"x": f"column 'x': {says}; only JSON text holds both: {HINT}"}
    assert admission.fields.names == []
    assert kind({"b": now}, {"a": before}) == own
    widened = SchemaContract.derive({"b": now}, {"a": before}, widen=True).admit("b", now)
    assert not widened.refused
    assert widened.promoted == {"x": f"{own} -> json"}
    assert is_json(widened.fields.field("x"))


def test_once_widened_it_stays_so() -> None:
    both = {"a": landed(raw(x=1)), "b": landed(raw(x="a"), x=JSON)}
    assert kind({"a": raw(x=1), "b": raw(x="a"), "c": raw(x=2)}, both) == JSON


def test_an_admission_tells_what_is_new_wider_missing_and_refused() -> None:
    before = {"p": landed(raw(n=1, kept=1.5, text="a", gone="a")), "q": landed(raw(n=[2, None], text="b"))}
    shard = raw(extra=[{"k": 1}], text=5, kept=3, n=0.5)
    contract = SchemaContract.derive({"r": shard, "p": raw(n=1, kept=1.5, text="a", gone="a")}, before)
    admission = contract.admit("r", shard)
    expected = pa.schema([("n", pa.float64()), ("kept", pa.float64()), json_field("extra")])
    assert admission.fields.equals(expected, check_metadata=True)
    assert admission.added == ("extra",)
    assert admission.promoted == {"n": "int64 -> double"}
    assert admission.adapted == {"kept": "int64 -> double"}
    assert admission.absent == ("gone",)
    assert list(admission.refused) == ["text"]
    assert "string in shard 'p' and 1 more" in admission.refused["text"]
    assert contract.admit("p", raw(n=1, kept=1.5)).adapted == {"n": "int64 -> double"}
    assert contract.admit("p", raw(n=1, kept=1.5)).promoted == {}
    assert contract.describe() == [
        {"column": "n", "type": "double", "published": "int64", "shards": 3, "first": ["p", "q", "r"]},
        {"column": "kept", "type": "double", "published": "double", "shards": 2, "first": ["p", "r"]},
        {"column": "text", "type": "string", "published": "string", "shards": 3, "first": ["p", "q", "r"]},
        {"column": "gone", "type": "string", "published": "string", "shards": 1, "first": ["p"]},
        {"column": "extra", "type": "json", "published": None, "shards": 1, "first": ["r"]},
    ]


def test_the_shards_named_are_the_first_by_key_whoever_is_published() -> None:
    before = {f"p{n}": landed(raw(x=1)) for n in range(20, 40)}
    contract = SchemaContract.derive({"p01": raw(x=1), "p35": raw(x=1)}, before)
    assert contract.describe() == [
        {"column": "x", "type": "int64", "published": "int64", "shards": 21, "first": ["p01", "p20", "p21"]}
    ]


def test_columns_come_in_the_order_of_keys_published_ones_first() -> None:
    published = {"q": landed(raw(d=1, c=1)), "p": landed(raw(b=1))}
    shards = {"n": raw(a=1, z=1), "m": raw(z=1)}
    for some in (published, dict(reversed(published.items()))):
        assert list(SchemaContract.derive(shards, some).columns) == ["b", "d", "c", "z", "a"]


def test_a_refusal_names_a_shard_that_has_values() -> None:
    contract = SchemaContract.derive({"c": raw(x={})}, {"a": landed(raw(x=None)), "b": landed(raw(x=1))})
    assert "int64 in shard 'b' (" in contract.admit("c", raw(x={})).refused["x"]


def test_a_shard_that_fits_is_not_shut_out_by_one_that_wants_a_change() -> None:
    shards = {"b": raw(x=1.5), "bad": raw(x="text"), "c": raw(x=BIG)}
    contract = SchemaContract.derive(shards, {"a": landed(raw(x=1))})
    assert not contract.admit("c", shards["c"]).refused
    assert (
        "double in this shard, int64 beyond 2^53 in shard 'c' ("
        in contract.admit("b", shards["b"]).refused["x"]
    )


def test_of_two_changes_that_exclude_each_other_the_first_key_has_its_way() -> None:
    shards = {"b": raw(x=1.5), "c": typed(x=pa.int16())}
    contract = SchemaContract.derive(shards, {"a": landed(typed(x=pa.int8()))})
    assert [contract.admit(key, shard).refused for key, shard in shards.items()] == [{}, {}]
    shards = {"b": raw(x=BIG), "c": raw(x=1.5)}
    contract = SchemaContract.derive(shards, {"a": landed(typed(x=pa.int8()))})
    assert not contract.admit("b", shards["b"]).refused
    assert contract.admit("c", shards["c"]).refused


def test_a_shard_made_anew_is_held_to_what_it_published_itself() -> None:
    """What is made of its output has those types already."""
    before = {"a": landed(raw(x=1.5))}
    assert SchemaContract.derive({"a": raw(x=BIG)}, before).admit("a", raw(x=BIG)).refused
    assert kind({"a": raw(x=1)}, before) == "double"


def test_a_shard_unknown_to_the_contract_is_an_error() -> None:
    contract = SchemaContract.derive({"a": raw(x=1)}, {})
    with pytest.raises(ValueError, match="shard 'b': column 'y'"):
        contract.admit("b", raw(x=1, y=1))


def test_not_null_holds_only_while_all_shards_say_so() -> None:
    strict = ShardColumns({}, pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    for other, nullable in ((strict, False), (raw(x=1), True), (raw(x=None), True)):
        contract = SchemaContract.derive({"a": strict, "b": other}, {"a": landed(strict)})
        assert contract.columns["x"].required_type.field.nullable is nullable


def test_reserved_names_are_never_passthrough() -> None:
    hostile = ShardColumns({}, pa.schema([("sample_id", pa.int64()), ("x", pa.int8())]))
    assert list(SchemaContract.derive({"a": hostile}, {"b": landed(raw(y=1))}).columns) == ["y", "x"]


# ---- properties

names = st.sampled_from("xyz")
raw_shards = st.dictionaries(names, st.lists(json_values, min_size=1, max_size=4), max_size=3)
declared_shards = st.dictionaries(names, arrow_types | st.just(JSON), max_size=3).map(
    lambda types: typed(**types)
)
shards_of = st.dictionaries(
    TEXT, raw_shards.map(lambda values: raw(**values)) | declared_shards, min_size=1, max_size=5
)
numbers = st.sampled_from([1, BIG, 1.5, None]) | st.sampled_from(
    [pa.int8(), pa.float32(), pa.int64(), pa.uint8()]
)
number_shards = st.dictionaries(
    TEXT,
    numbers.map(lambda v: typed(x=v) if isinstance(v, pa.DataType) else raw(x=v)),
    min_size=1,
    max_size=6,
)


def _types(contract: SchemaContract) -> dict[str, tuple[str, bool]]:
    return {
        name: (type_name(c.required_type.field), c.required_type.field.nullable)
        for name, c in contract.columns.items()
    }


@given(shards_of | number_shards, st.randoms())
def test_the_contract_does_not_depend_on_the_order_of_shards(
    shards: dict[str, ShardColumns], order: random.Random
) -> None:
    items = list(shards.items())
    order.shuffle(items)
    one, other = SchemaContract.derive(shards, {}), SchemaContract.derive(dict(items), {})
    assert list(_types(one).items()) == list(_types(other).items())
    assert one.describe() == other.describe()
    relabelled = {str(n): shard for n, (_, shard) in enumerate(items)}  # nor on which shard has which key
    assert _types(SchemaContract.derive(relabelled, {})) == _types(one)


@given(shards_of | number_shards, shards_of | number_shards, st.booleans())
def test_it_never_narrows_and_refuses_only_what_is_left_out(
    earlier: dict[str, ShardColumns], now: dict[str, ShardColumns], widen: bool
) -> None:
    first = SchemaContract.derive(earlier, {})
    published = {key: Published(first.admit(key, shard).fields, shard) for key, shard in earlier.items()}
    contract = SchemaContract.derive({**earlier, **now}, published, widen)
    for output in published.values():
        for field in output.schema:
            assert contract.columns[field.name].required_type.holds(RequiredType(field))
    for key, shard in now.items():
        admission = contract.admit(key, shard)
        assert set(admission.fields.names) | set(admission.refused) == set(shard.required_types())
        assert not set(admission.fields.names) & set(admission.refused)
        assert not (widen and admission.refused)
        assert all(
            f.equals(contract.columns[f.name].required_type.field, check_metadata=True)
            for f in admission.fields
        )


@given(st.dictionaries(TEXT, raw_shards, min_size=1, max_size=4), shards_of | number_shards, st.booleans())
def test_values_survive_in_the_admitted_types(
    data: dict[str, dict[str, list[Any]]], earlier: dict[str, ShardColumns], widen: bool
) -> None:
    first = SchemaContract.derive(earlier, {})
    published = {key: Published(first.admit(key, shard).fields, shard) for key, shard in earlier.items()}
    shards = {key: raw(**values) for key, values in data.items()}
    contract = SchemaContract.derive({**earlier, **shards}, published, widen)
    for key, values in data.items():
        fields = contract.admit(key, shards[key]).fields
        for field in fields:
            own = shards[key].required_types()[field.name].field
            read = pa.Table.from_arrays([build_column(values[field.name], own)], schema=pa.schema([own]))
            column = align_table(read, pa.schema([field])).column(0)
            assert column.type == field.type
            texts = column.to_pylist()
            found = (
                [None if text is None else json.loads(text) for text in texts] if is_json(field) else texts
            )
            assert found == values[field.name]


@given(st.lists(columns(), min_size=2, max_size=3))
def test_declared_columns_survive_in_the_admitted_types(arrays: list[pa.Array]) -> None:
    shards = {str(n): typed(x=array.type) for n, array in enumerate(arrays)}
    contract = SchemaContract.derive(shards, {"0": Published(shards["0"].declared, shards["0"])}, widen=True)
    for key, array in zip(shards, arrays, strict=True):
        table = pa.table({"x": array})
        (field,) = contract.admit(key, shards[key]).fields
        try:
            column = align_table(table, pa.schema([field])).column("x")
        except SchemaMismatch:  # the one thing that is not known of declared columns, and never silent
            assert pa.types.is_int64(array.type) and pa.types.is_float64(field.type)
            continue
        own = table.schema.field("x")
        if is_json(field) and not pa.types.is_null(array.type):
            values = [None if text is None else json.loads(text) for text in column.to_pylist()]
            assert repr(json_codec.encode(json_codec.decode(values, own), own)) == repr(
                json_codec.encode(array, own)
            )  # NaN is not itself
        elif pa.types.is_null(array.type):
            assert column.null_count == len(array)
        else:
            back = column if column.type == array.type else column.cast(array.type)
            assert repr(json_codec.encode(back, own)) == repr(json_codec.encode(array, own))


def _minority(published: dict[str, Published] | None = None, **shards: ShardColumns) -> dict[str, str]:
    """What is told of column ``x``, by shard."""
    contract = SchemaContract.derive(shards, published or {})
    decisions = {name: contract.admit(name, columns) for name, columns in shards.items()}
    return {name: found.minority_types["x"] for name, found in decisions.items() if found.minority_types}


def test_the_few_shards_for_which_a_column_is_json_text_are_named() -> None:
    told = (
        "column 'x' becomes JSON text in all shards as they are made: "
        "int64 in 3 shards, but string in shard 'b'"
    )
    shards = {
        "a": raw(x=1),
        "b": raw(x="1"),
        "c": raw(x=[2, None]),
        "d": raw(x=1.5),
        "e": raw(),
        "f": raw(x=None),
    }
    assert _minority(**shards) == {"b": told}
    text = {name: landed(columns, x=JSON) for name, columns in shards.items()}
    assert _minority(text, **shards) == {"b": told}, "also of published shards: the surveys still tell"


def test_of_many_such_shards_some_are_named() -> None:
    many = {f"m{number}": raw(x=number) for number in range(9)}
    odd = {f"o{number}": raw(x="1") for number in range(5)} | {"p": raw(x=True)}
    told = (
        "column 'x' becomes JSON text in all shards as they are made: "
        "int64 in 9 shards, but string in shards 'o0', 'o1', 'o2' and "
        "2 more; bool in shard 'p'"
    )
    assert _minority(**many, **odd) == dict.fromkeys(odd, told)


def test_without_a_majority_no_shard_is_odd() -> None:
    assert _minority(a=raw(x=1), b=raw(x=2), c=raw(x="1"), d=raw(x="2")) == {}
    structs = {f"s{n}": raw(x=[[{f"k{m}": 1 for m in range(n + 1)}]]) for n in range(3)}
    assert _minority(a=raw(x=1), **structs, b=raw(x="1")) == {}


@pytest.mark.parametrize(
    "odd", [raw(x=1), raw(x=None), raw(x=1.5), raw()], ids=["alike", "null", "wider", "absent"]
)
def test_a_shard_that_fits_is_not_told_of(odd: ShardColumns) -> None:
    assert _minority(a=raw(x=1), b=raw(x=2), c=odd) == {}


def test_a_column_that_most_shards_need_as_json_text_is_nobody_else_s_doing() -> None:
    assert _minority(a=raw(x=[[1]]), b=raw(x=[{}]), c=raw(x=1)) == {}
    assert _minority(a=raw(x=1), b=raw(x=2), c=raw(x=[[1]])) == {
        "c": (
            "column 'x' becomes JSON text in all shards as they are made: "
            "int64 in 2 shards, but json in shard 'c'"
        )
    }


def test_a_mended_shard_is_not_told_of_although_the_column_stays() -> None:
    shards = {"a": raw(x=1), "b": raw(x=2)}
    assert _minority({name: landed(columns, x=JSON) for name, columns in shards.items()}, **shards) == {}
