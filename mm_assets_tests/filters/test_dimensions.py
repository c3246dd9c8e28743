"""Declared against measured sizes of images."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.filters.readable import COLUMNS, DimensionTally, Mismatch
from mm_assets.filters.scores import ImageScores, score_table
from mm_assets.model.json_codec import json_field
from mm_assets_tests.formats.datasets import item, table_of
from mm_assets_tests.formats.images.variants import encoded, turned

SIZES = ((30, 20), (11, 40), (25, 25))
DOCUMENT = [{"width": w, "height": h, "page": 1} for w, h in SIZES]
WIDTHS = [pa.field("nv_width", pa.int64()), pa.field("nv_height", pa.int64())]


def image(
    position: int, size: tuple[int, int] = (30, 20), sample_id: str = "s", **values: Any
) -> dict[str, Any]:
    return item(sample_id, position, "image", binary_content=encoded("png", size=size), **values)


def tally_of(*tables: pa.Table) -> DimensionTally:
    tally = DimensionTally()
    for table in tables:
        present = [name for name in COLUMNS if name in table.column_names]
        tally.observe(table.select(present), ImageScores(score_table(table)))
    return tally


def listed(declared: Any, rows: list[dict[str, Any]], extras: list[pa.Field] | None = None) -> DimensionTally:
    """One sample whose metadata row has the list, as our readers keep it."""
    text = declared if isinstance(declared, str) or declared is None else json.dumps(declared)
    extras = [json_field("image_metadata"), *(extras or [])]
    return tally_of(table_of([item("s", image_metadata=text), *rows], extras))


def outcome(tally: DimensionTally) -> tuple[int, int, list[int]]:
    return tally.compared, tally.undeclared, [mismatch.position for mismatch in tally.mismatches]


def test_an_entry_for_each_image() -> None:
    rows = [
        item("s", 0, text_content="t"),
        image(1, SIZES[0]),
        item("s", 2, text_content="t"),
        image(3, SIZES[1]),
        image(4, SIZES[2]),
    ]
    assert outcome(listed(DOCUMENT, rows)) == (3, 0, [])
    changed = [DOCUMENT[0], DOCUMENT[1] | {"height": 41}, DOCUMENT[2]]
    tally = listed(changed, rows)
    assert tally.mismatches == [Mismatch("s", 3, declared=(11, 41), measured=(11, 40))]
    assert outcome(tally) == (3, 0, [3])
    assert outcome(listed([DOCUMENT[1], DOCUMENT[0], DOCUMENT[2]], rows)) == (3, 0, [1, 3])


def test_an_entry_for_each_place() -> None:
    rows = [item("s", 0, text_content="t"), image(1, SIZES[0]), image(2, SIZES[1])]
    assert outcome(listed([None, *DOCUMENT[:2]], rows)) == (2, 0, [])
    assert outcome(listed([None, *DOCUMENT[:2], None], rows)) == (2, 0, [])
    assert outcome(listed([None, DOCUMENT[1], DOCUMENT[1]], rows)) == (2, 0, [1])
    assert outcome(listed([None, None, DOCUMENT[1]], rows)) == (1, 1, [])


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_images_that_are_gone_leave_gaps(gone: int) -> None:
    def without(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        images = [row for row in rows if row["modality"] == "image"]
        return [row for row in rows if row is not images[gone]]

    with_texts = [image(0, SIZES[0]), item("s", 1, text_content="t"), image(2, SIZES[1]), image(3, SIZES[2])]
    assert outcome(listed([DOCUMENT[0], None, *DOCUMENT[1:]], without(with_texts))) == (2, 0, [])
    # One entry an image: which of them is gone cannot be told, and no guess makes a mismatch.
    assert outcome(listed(DOCUMENT, without(with_texts))) == (0, 2, [])
    only_images = [image(n, size) for n, size in enumerate(SIZES)]
    assert outcome(listed(DOCUMENT, without(only_images))) == (2, 0, [])


def test_lists_that_fit_nothing() -> None:
    rows = [image(0, SIZES[0]), item("s", 1, text_content="t"), image(2, SIZES[1])]
    for declared in (
        DOCUMENT[:1],
        DOCUMENT,
        [],
        [None] * 2,
        {"width": 30, "height": 20},
        "no json",
        "[" * 100_000,
        "9" * 5000,
        None,
    ):
        assert outcome(listed(declared, rows)) == (0, 2, [])
    assert outcome(listed([DOCUMENT[0], None], [image(0, SIZES[0])])) == (1, 0, [])
    assert outcome(
        listed([DOCUMENT[0], None], [image(0, SIZES[0]), item("s", 2, text_content="beyond")])
    ) == (0, 1, [])
    assert outcome(listed(DOCUMENT, [item("s", 0, text_content="t")])) == (0, 0, [])


NO_WIDTHS: list[Any] = [None, "wide", "", True, 0, -30, 30.5, [30], {}, float("nan"), float("inf")]


@pytest.mark.parametrize(
    "entry",
    [{}, {"width": 30}, [30, 20], "30x20", 7, None, *({"width": width, "height": 20} for width in NO_WIDTHS)],
    ids=str,
)
def test_what_is_no_size_is_not_compared(entry: Any) -> None:
    assert outcome(listed([entry, DOCUMENT[1]], [image(0), image(1, SIZES[1])])) == (1, 1, [])


@pytest.mark.parametrize("entry", [{"width": 30.0, "height": "20"}, '{"width": 30, "height": 20}'], ids=str)
def test_numbers_in_other_clothes(entry: Any) -> None:
    assert outcome(listed([entry], [image(0)])) == (1, 0, [])
    assert outcome(listed([entry], [image(0, (30, 21))])) == (1, 0, [0])


def test_a_typed_list_of_records() -> None:
    record = pa.struct([("width", pa.int32()), ("height", pa.int32())])
    rows = [
        item(
            "s",
            image_metadata=[
                {"width": 30, "height": 20},
                {"width": 1, "height": None},
                {"width": 5, "height": 5},
            ],
        )
    ]
    rows += [image(n) for n in range(3)]
    assert outcome(tally_of(table_of(rows, [pa.field("image_metadata", pa.list_(record))]))) == (2, 1, [2])


def test_one_record_on_each_image_row() -> None:
    rows = [
        item("s"),
        image(2, image_metadata='{"width":30,"height":20}'),
        image(5, image_metadata='{"width":30,"height":2}'),
        image(6),
    ]
    assert outcome(tally_of(table_of(rows, [json_field("image_metadata")]))) == (2, 1, [5])


@pytest.mark.parametrize("names", [("nv_width", "nv_height"), ("width", "height")])
@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string()], ids=str)
def test_columns_of_image_rows(names: tuple[str, str], kind: pa.DataType) -> None:
    def said(width: int, height: int | None) -> dict[str, Any]:
        values = [None if side is None else pa.scalar(side).cast(kind).as_py() for side in (width, height)]
        return dict(zip(names, values, strict=True))

    rows = [
        item("s", **said(9, 9)),
        image(0, **said(30, 20)),
        image(1, **said(20, 30)),
        image(2, **said(30, None)),
        image(3),
    ]
    tally = tally_of(table_of(rows, [pa.field(name, kind) for name in names]))
    assert outcome(tally) == (2, 2, [1])


def test_the_first_that_says_a_size_counts() -> None:
    sides = [*WIDTHS, pa.field("width", pa.int64()), pa.field("height", pa.int64())]
    rows = [image(0, nv_width=30, nv_height=20, width=1, height=1), image(1, width=30, height=20), image(2)]
    assert outcome(listed([{"width": 7, "height": 7}] * 3, rows, sides)) == (3, 0, [2])


@pytest.mark.parametrize(
    ("orientation", "agree"),
    [(1, [(30, 20)]), (3, [(30, 20)]), (6, [(30, 20), (20, 30)]), (8, [(30, 20), (20, 30)])],
)
def test_the_stored_and_the_displayed_size_both_agree(orientation: int, agree: list[tuple[int, int]]) -> None:
    data = encoded("jpg", size=(30, 20), exif=turned(orientation))
    declared = [(30, 20), (20, 30), (30, 30)]
    rows = [
        item("s", n, "image", binary_content=data, nv_width=w, nv_height=h)
        for n, (w, h) in enumerate(declared)
    ]
    tally = tally_of(table_of([item("s"), *rows], WIDTHS))
    assert tally.compared == 3
    assert [mismatch.declared for mismatch in tally.mismatches] == [
        size for size in declared if size not in agree
    ]
    assert {mismatch.measured for mismatch in tally.mismatches} == {
        (20, 30) if orientation >= 5 else (30, 20)
    }


def test_images_without_a_measurement_count_as_neither() -> None:
    rows = [
        image(0, materialize_error="gone"),
        item("s", 1, "image", binary_content=b"junk"),
        item("s", 2, "image"),
        image(3),
    ]
    assert outcome(listed([DOCUMENT[0]] * 4, rows)) == (1, 0, [])
    tally = DimensionTally()
    tally.observe(table_of([item("s"), image(0)]), ImageScores(score_table(table_of([]))))
    assert outcome(tally) == (0, 0, [])


def test_samples_and_tables_add_up() -> None:
    def sample(sample_id: str, declared: int) -> list[dict[str, Any]]:
        text = json.dumps([{"width": declared, "height": 20}])
        return [
            item(sample_id, image_metadata=text),
            item(sample_id, 0, text_content="t"),
            image(4, sample_id=sample_id),
        ]

    extras = [json_field("image_metadata")]
    first = table_of([*sample("a", 30), *sample("b", 31)], extras)
    second = table_of([*sample("c", 29), item("d"), image(0, sample_id="d")], extras)
    tally = tally_of(first, table_of([]), second)
    assert (tally.compared, tally.undeclared) == (3, 1)
    assert tally.mismatches == [Mismatch("b", 4, (31, 20), (30, 20)), Mismatch("c", 4, (29, 20), (30, 20))]


def test_tables_that_declare_nothing() -> None:
    assert outcome(tally_of(table_of([item("s"), image(0), image(1)]))) == (0, 2, [])
