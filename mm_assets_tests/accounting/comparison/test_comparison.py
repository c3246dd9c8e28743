"""A comparison finds every row that two datasets do not share, and names sample, position and column."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_assets.accounting.canonical import CanonicalSource, canonical_sources
from mm_assets.accounting.comparison import Comparison, Dataset, compare
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.json_codec import json_field
from mm_assets_tests.formats.datasets import FORMATS, item, table_of, write

N, SCORE, J = pa.field("n", pa.int64()), pa.field("score", pa.float64()), json_field("j")
ROWS = [
    item("one", n=5, score=0.5, j='{"a":1}', source_ref="{}"),
    item("one", 0, text_content="some text"),
    item("one", 1, "image", binary_content=b"first image", content_type="image/png"),
    item("one", 2, "image", binary_content=b"second image", content_type="image/png"),
    item("two", n=6),
    item("two", 0, text_content="more"),
]


class Rows:
    """Tables in memory where a `CanonicalSource` has those of a file."""

    def __init__(self, *tables: pa.Table, states_types: bool = True) -> None:
        self._tables = tables
        self._states_types = states_types

    def states_types(self) -> bool:
        return self._states_types

    def tables(self) -> Iterator[pa.Table]:
        return iter(self._tables)


def dataset(*tables: pa.Table, states_types: bool = True) -> Dataset:
    return Dataset([Rows(table, states_types=states_types) for table in tables])  # type: ignore[misc]


def of(rows: Sequence[dict[str, Any]], fields: Sequence[pa.Field] = (N, SCORE, J)) -> pa.Table:
    return table_of(rows, fields)


def changed(index: int, **values: Any) -> list[dict[str, Any]]:
    return [{**row, **values} if at == index else row for at, row in enumerate(ROWS)]


def lines(found: Comparison) -> list[str]:
    return [str(difference) for difference in found.differences]


TABLE = of(ROWS)
EQUAL = {
    "itself": dataset(TABLE),
    "other order": dataset(TABLE.take([5, 4, 2, 0, 1, 3])),
    "other cuts": dataset(TABLE.slice(4), TABLE.slice(0, 4), TABLE.slice(0, 0)),
    "columns in other order": dataset(TABLE.select(TABLE.column_names[::-1])),
    "a column of nulls": dataset(
        TABLE.append_column("empty", pa.nulls(6, pa.int32())).append_column("null", pa.nulls(6))
    ),
    "without a column of nulls": dataset(TABLE.drop_columns(["materialize_error"])),
    "nulls in other types": dataset(
        of(ROWS[:1]), of(ROWS[1:4], [pa.field("n", pa.string())]), of(ROWS[4:], [N])
    ),
}


@pytest.mark.parametrize("other", EQUAL)
def test_equal_rows(other: str) -> None:
    for found in (compare(dataset(TABLE), EQUAL[other]), compare(EQUAL[other], dataset(TABLE))):
        assert (found.is_equal, found.differences, found.items, found.is_cut) == (True, (), 0, False)
        assert (found.left.rows, found.left.images, found.left.texts, found.right.rows) == (6, 2, 2, 6)


BYTES = "sample 'one', position 1, column 'binary_content': "
DIFFERENT = {
    "value": (changed(0, n=7), ["sample 'one', position -1, column 'n': int64 5 in A, int64 7 in B"]),
    "two columns": (
        changed(0, n=None, score=-0.5),
        [
            "sample 'one', position -1, column 'n': int64 5 in A, null in B",
            "sample 'one', position -1, column 'score': double 0.5 in A, double -0.5 in B",
        ],
    ),
    "json": (
        changed(0, j='{"a":2}'),
        ["sample 'one', position -1, column 'j': json {\"a\":1} in A, json {\"a\":2} in B"],
    ),
    "text": (
        changed(5, text_content="most"),
        ["sample 'two', position 0, column 'text_content': string 'more' in A, string 'most' in B"],
    ),
    "one byte": (
        changed(2, binary_content=b"First image"),
        [f"{BYTES}11 bytes in A, 11 bytes in B, different from byte 0 on"],
    ),
    "a cut image": (
        changed(2, binary_content=b"first im"),
        [f"{BYTES}11 bytes in A, 8 bytes in B, different from byte 8 on"],
    ),
    "no image": (changed(2, binary_content=None), [f"{BYTES}11 bytes in A, null in B"]),
    "swapped images": (
        [*ROWS[:2], {**ROWS[2], "position": 2}, {**ROWS[3], "position": 1}, *ROWS[4:]],
        [
            f"{BYTES}11 bytes in A, 12 bytes in B, different from byte 0 on",
            "sample 'one', position 2, column 'binary_content': 12 bytes in A, 11 bytes in B, "
            "different from byte 0 on",
        ],
    ),
    "a row less": (ROWS[:3] + ROWS[4:], ["sample 'one', position 2: the image row is missing in B"]),
    "a row more": ([*ROWS, item("three")], ["sample 'three', position -1: the metadata row is missing in A"]),
    "a row twice": (
        [*ROWS, ROWS[1]],
        ["sample 'one', position 0: the text row occurs 1 time in A, 2 times in B"],
    ),
    "another position": (
        changed(5, position=9),
        [
            "sample 'two', position 0: the text row is missing in B",
            "sample 'two', position 9: the text row is missing in A",
        ],
    ),
    "a row for another": (
        [*ROWS[:5], ROWS[4]],
        [
            "sample 'two', position 0: the text row is missing in B",
            "sample 'two', position -1: the metadata row occurs 1 time in A, 2 times in B",
        ],
    ),
}


@pytest.mark.parametrize("change", DIFFERENT)
def test_different_rows(change: str) -> None:
    rows, expected = DIFFERENT[change]
    found = compare(dataset(TABLE), dataset(of(rows).slice(3), of(rows).slice(0, 3)))
    assert sorted(lines(found)) == sorted(expected)
    assert found.items == len({(d.sample_id, d.position, d.modality) for d in found.differences})
    back = compare(dataset(of(rows)), dataset(TABLE), names=("B", "A"))
    assert len(lines(back)) == len(expected)
    assert {(d.sample_id, d.position, d.column) for d in back.differences} == {
        (d.sample_id, d.position, d.column) for d in found.differences
    }


def test_a_renamed_column_and_another_type() -> None:
    renamed = TABLE.rename_columns([name.replace("score", "points") for name in TABLE.column_names])
    assert lines(compare(dataset(TABLE), dataset(renamed))) == [
        "sample 'one', position -1, column 'score': double 0.5 in A, no such column in B",
        "sample 'one', position -1, column 'points': no such column in A, double 0.5 in B",
    ]
    retyped = TABLE.set_column(8, pa.field("n", pa.string()), TABLE.column("n").cast(pa.string()))
    assert lines(compare(dataset(TABLE), dataset(retyped))) == [
        "sample 'one', position -1, column 'n': int64 5 in A, string '5' in B",
        "sample 'two', position -1, column 'n': int64 6 in A, string '6' in B",
    ]


def test_a_type_that_changes_in_one_place_changes_no_other() -> None:
    """The column is JSON text in the one table that both places would make; the rows of the other place are
    as they were.
    """
    text = of([{**ROWS[4], "n": "6"}, ROWS[5]], [pa.field("n", pa.string())])
    found = compare(dataset(TABLE.slice(0, 4), TABLE.slice(4)), dataset(TABLE.slice(0, 4), text))
    assert lines(found) == ["sample 'two', position -1, column 'n': int64 6 in A, string '6' in B"]


def test_a_long_text_is_shown_where_it_differs() -> None:
    long = "x" * 500
    found = compare(
        dataset(of(changed(1, text_content=long + "a"))), dataset(of(changed(1, text_content=long + "b")))
    )
    (line,) = lines(found)
    assert (
        line == f"sample 'one', position 0, column 'text_content': string …'{'x' * 20}a' in A, string "
        f"…'{'x' * 20}b' in B"
    )


@pytest.mark.parametrize(
    ("types", "values"),
    [
        ([pa.int64(), pa.float64(), pa.null()], [5, 2.5, None]),
        ([pa.int64(), pa.string(), pa.float64()], [5, "5", 5.0]),
        ([pa.int32(), pa.int64(), pa.bool_()], [5, 2**40, True]),
        ([pa.int64(), pa.int64()], [2**60 + 1, 3]),
    ],
)
def test_shards_of_other_types_are_the_table_that_was_made_of_them(
    types: list[pa.DataType], values: list[Any], tmp_path: Path
) -> None:
    batches = [
        InterleavedBatch(table_of([item(f"s{i}", v=value)], [pa.field("v", type_)]), (), f"p{i}")
        for i, (type_, value) in enumerate(zip(types, values, strict=True))
    ]
    for kind in FORMATS:
        write(kind, tmp_path / kind, batches)
    found = [Dataset(canonical_sources(str(tmp_path / kind))) for kind in FORMATS]
    assert len({dataset.stats.digest for dataset in found}) == 1
    assert all(compare(found[0], other).is_equal for other in found[1:])


def test_integers_that_no_float_holds() -> None:
    """Settled as JSON text, like in a table of both."""
    integers, floats = (
        table_of([item(name, v=value)], [pa.field("v", type_)])
        for name, value, type_ in [("i", 2**53 + 1, pa.int64()), ("f", 0.5, pa.float64())]
    )
    texts, others = (
        dataset(
            table_of([item("i", v=str(value)), item("f", v="0.5")], [json_field("v")]), states_types=False
        )
        for value in (2**53 + 1, 2**53)
    )
    assert compare(dataset(integers, floats), texts).is_equal
    assert not compare(dataset(integers, floats), others).is_equal


@pytest.mark.parametrize(
    ("stated", "cast", "values"),
    [
        (pa.float64(), pa.int64(), (5.0, 6.0)),
        (pa.int64(), pa.int32(), (5, 6)),
        (pa.float64(), pa.float32(), (0.5, 6.0)),
        (pa.int64(), pa.string(), (5, 6)),
    ],
)
def test_a_type_that_is_another_in_one_of_several_places(
    stated: pa.DataType, cast: pa.DataType, values: tuple[Any, Any]
) -> None:
    """The two places together make the column what it was; only a table that they were poured into has it in
    one type.
    """
    tables = [
        table_of([item(f"s{i}", f=value), item(f"s{i}", 0, text_content="t")], [pa.field("f", stated)])
        for i, value in enumerate(values)
    ]
    sound, poured = dataset(*tables), dataset(pa.concat_tables(tables), states_types=False)
    narrow = tables[0].set_column(8, pa.field("f", cast), tables[0].column("f").cast(cast))
    changed = dataset(narrow, tables[1])
    (line,) = lines(compare(sound, changed))
    assert re.fullmatch(rf"sample 's0', position -1, column 'f': {stated} \S+ in A, {cast} \S+ in B", line)
    assert lines(compare(changed, dataset(pa.concat_tables(tables)))) != []  # cut into other places
    assert compare(sound, poured).is_equal
    if cast != pa.string():
        assert compare(changed, poured).is_equal and compare(poured, changed).is_equal


def test_lost_items_are_no_differences() -> None:
    left, right = dataset(TABLE), dataset(of([ROWS[0], *ROWS[2:5]]))
    lost = [("one", 0, "text"), ("two", 0, "text"), ("one", None, None)]
    assert compare(left, right, lost).is_equal
    assert compare(left, right, set(lost)).is_equal
    assert lines(compare(left, right, lost[1:])) == ["sample 'one', position 0: the text row is missing in B"]
    assert lines(compare(left, dataset(of(changed(1, text_content="?"))), [("one", 0, "text")])) == [
        "sample 'one', position 0, column 'text_content': string 'some text' in A, string '?' in B"
    ]


def test_a_lost_duplicate_is_lost_as_often_as_named() -> None:
    thrice = dataset(TABLE, TABLE.slice(1, 1), TABLE.slice(1, 1))
    lost = [("one", 0, "text")]
    assert compare(thrice, dataset(TABLE), lost * 2).is_equal
    assert lines(compare(thrice, dataset(TABLE), lost)) == [
        "sample 'one', position 0: the text row occurs 3 times in A, 1 time in B"
    ]


def test_the_list_is_bounded_and_the_number_is_not() -> None:
    many = [item(f"s{i}", n=i) for i in range(50)]
    found = compare(dataset(of(many)), dataset(of([{**row, "n": -1} for row in many[:45]])))
    assert (len(found.differences), found.items, found.is_cut, found.is_equal) == (20, 50, True, False)
    assert lines(found)[0] == "sample 's0', position -1, column 'n': int64 0 in A, int64 -1 in B"
    assert not compare(dataset(of(many)), dataset(of(many[:31]))).is_cut


def test_two_places(tmp_path: Path) -> None:
    """Outputs of one shard, as the graph compares them."""
    for kind in FORMATS:
        write(
            kind,
            tmp_path,
            [InterleavedBatch(TABLE, (), "part"), InterleavedBatch(of([item("z", n=1)]), (), "other")],
        )
    parquet, tar = (
        CanonicalSource("parquet", f"{tmp_path}/part.parquet", "part"),
        CanonicalSource("webdataset", f"{tmp_path}/part.tar", "part"),
    )
    table = CanonicalSource("lance", f"{tmp_path}/items.lance", "part")
    assert compare(parquet, tar).is_equal and compare(parquet, table).is_equal
    found = compare(CanonicalSource("lance", f"{tmp_path}/items.lance"), tar, names=("table", "tars"))
    assert lines(found) == ["sample 'z', position -1: the metadata row is missing in tars"]
    assert compare(CanonicalSource("parquet", ""), tar).items == 6


def test_a_partition_of_a_table_has_the_types_of_the_table(tmp_path: Path) -> None:
    """Another partition made the column JSON text: that is no difference, a value is."""
    batches = [
        InterleavedBatch(TABLE, (), "part"),
        InterleavedBatch(table_of([item("z", n="text")], [pa.field("n", pa.string())]), (), "z"),
    ]
    for kind in ("parquet", "lance"):
        write(kind, tmp_path, batches)
    parquet, table = (
        CanonicalSource("parquet", f"{tmp_path}/part.parquet", "part"),
        CanonicalSource("lance", f"{tmp_path}/items.lance", "part"),
    )
    assert compare(parquet, table).is_equal and compare(table, parquet).is_equal
    assert compare(parquet, table, [("nobody", 0, "text")]).is_equal
    write("parquet", tmp_path, InterleavedBatch(of(changed(4, n=66)), (), "part"))
    assert lines(compare(parquet, table)) == [
        "sample 'two', position -1, column 'n': int64 66 in A, json 6 in B"
    ]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 1)), max_size=8), st.data()
)
def test_every_row_without_partner_is_found(left: list[tuple[str, int, int]], data: st.DataObject) -> None:
    right = data.draw(
        st.permutations(left).map(lambda rows: rows[: len(rows) // 2 * 2])
        | st.just(left[1:])
        | st.permutations(left + left[:2])
    )
    tables = [of([item(s, p, n=n) for s, p, n in rows]) for rows in (left, right)]
    found = compare(
        dataset(tables[0]), dataset(*(tables[1].slice(at, 3) for at in range(0, len(right) + 1, 3)))
    )
    counts = Counter(left), Counter(right)
    unequal = {(s, p) for s, p, n in {*left, *right} if counts[0][s, p, n] != counts[1][s, p, n]}
    assert {(d.sample_id, d.position) for d in found.differences} == unequal
    assert found.items == len(unequal)


def test_ten_thousand_rows_in_any_order() -> None:
    rows = [item(f"s{i}", n=i) for i in range(10_000)]
    shuffled = random.Random(0).sample(rows, len(rows))
    assert compare(dataset(of(rows)), dataset(of(shuffled))).is_equal
    shuffled[77] = {**shuffled[77], "n": -5}
    (difference,) = compare(dataset(of(rows)), dataset(of(shuffled))).differences
    assert (difference.sample_id, difference.column) == (shuffled[77]["sample_id"], "n")
