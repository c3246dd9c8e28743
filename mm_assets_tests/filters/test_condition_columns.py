"""Conditions over columns of the rows: each type, names in another case, what shards lack."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.filters import FilterSettingError
from mm_assets.filters.chain import FilterChain
from mm_assets.filters.condition import ImageCondition, SampleCondition, TextCondition
from mm_assets.filters.registry import chain_of
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets_tests.filters.filter_sets import png
from mm_assets_tests.formats.datasets import item

PICTURE = png(30, 20)


def batch(*samples: Mapping[str, Any], types: pa.Schema) -> InterleavedBatch:
    """Samples of a metadata row and images; ``images`` has the columns of each."""
    rows = []
    for number, given in enumerate(samples):
        own = {name: value for name, value in given.items() if name != "images"}
        rows.append(item(f"s{number}", content_type="application/json") | own)
        rows += [
            item(f"s{number}", position, "image", binary_content=PICTURE, content_type="image/png") | image
            for position, image in enumerate(given.get("images", []))
        ]
    return InterleavedBatch(pa.Table.from_pylist(rows, schema=pa.schema([*INTERLEAVED_SCHEMA, *types])))


def kept(condition: str, source: InterleavedBatch, fit: bool = True) -> list[int]:
    """The numbers of the samples that a condition keeps."""
    chain = FilterChain.of([SampleCondition(condition)])
    if fit:
        chain = chain.fitted({"a": source.data.schema}, [], "")
    ids = chain(source).batch.data["sample_id"].unique().to_pylist()
    return [int(sample_id[1:]) for sample_id in ids]


HOUR = datetime(2024, 6, 1, 12, tzinfo=UTC)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["good", "spam", None]),
    "large": (pa.large_string(), ["good", "spam", None]),
    "coded": (pa.dictionary(pa.int32(), pa.string()), ["good", "spam", None]),
    "flag": (pa.bool_(), [True, False, None]),
    "whole": (pa.int64(), [1 << 40, 3, None]),
    "small": (pa.uint8(), [255, 3, None]),
    "real": (pa.float64(), [0.5, float("nan"), None]),
    "half": (pa.float16(), [0.5, 0.25, None]),
    "price": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("0.10"), None]),
    "day": (pa.date32(), [date(2024, 6, 1), date(1999, 1, 1), None]),
    "stamp": (pa.timestamp("us"), [datetime(2024, 6, 1), datetime(1999, 1, 1), None]),
    "zoned": (pa.timestamp("ns", "Asia/Tokyo"), [HOUR, datetime(1999, 1, 1, tzinfo=UTC), None]),
    "meta": (pa.struct([("lang", pa.string()), ("deep", pa.struct([("n", pa.int32())]))]), [
        {"lang": "en", "deep": {"n": 7}}, {"lang": "de", "deep": None}, None]),
    "tags": (pa.list_(pa.string()), [["a", "b"], [], None]),
    "json": (pa.json_(), ['{"lang": "en", "n": 3}', '"en"', None]),
    "data": (pa.binary(), [b"good", b"spam", None]),
    "nothing": (pa.null(), [None, None, None]),
    "URL": (pa.string(), ["https://good/", "https://spam/", None]),
    "two words": (pa.string(), ["x", "y", None]),
}  # fmt: skip
SOURCE = batch(
    *({name: values[number] for name, (_, values) in COLUMNS.items()} for number in range(3)),
    types=pa.schema([(name, type_) for name, (type_, _) in COLUMNS.items()]),
)


@pytest.mark.parametrize(
    "condition",
    [
        *("text = 'good'", "text not like '%sp%'", "large in ('good', 'x')", "coded = 'good'", "flag"),
        *("whole > 1000 and words = 0", "small = 255", "real > 0.1", "half > 0.3"),
        *("price >= 1.5", "price = '1.50'", "day > '2000-01-01'", "year(stamp) = 2024"),
        *("stamp between '2024-01-01' and '2025-01-01'", "zoned = '2024-06-01 12:00:00'"),
        *("meta.lang = 'en'", "meta['lang'] = 'en'", "meta.deep.n > 5", "(meta).lang in ('en', 'fr')"),
        *("len(tags) > 1", "list_contains(tags, 'a')", "'b' in tags", "tags[1] = 'a'"),
        *("json->>'lang' = 'en'", "(json->>'n')::int > 2", "json_extract_string(json, '$.lang') = 'en'"),
        *("data = 'good'::blob", "nothing is null and text = 'good'", "URL like '%good%'"),
        *('"two words" = \'x\'', "Text = 'good' and TEXT <> 'x'", "sample_id = 's0'"),
        *("url like '%good%'", "split_part(url, '/', 3) = 'good'"),
        "regexp_extract(url, '//([a-z]+)/', 1) = 'good'",
    ],
)  # fmt: skip
def test_each_type(condition: str) -> None:
    assert kept(condition, SOURCE) == [0]
    assert kept(condition, SOURCE, fit=False) == [0]


@pytest.mark.parametrize(
    ("condition", "line"),
    [
        ("txet = 'x'", "no shard has a column 'txet'; the nearest is text"),
        ("wordz > 3", "no shard has a column 'wordz'; the nearest is words"),
        ("nothing.url like 'x' and no > 3", "no shard has a column 'no'; there are "),
        ("binary_content is null", "the column 'binary_content' cannot be used"),
        ("Text_Content = 'x'", "the column 'Text_Content' cannot be used"),
        ("position = 1", "the column 'position' cannot be used"),
        ("rowid > 1", "no shard has a column 'rowid'"),
        ("current_user = 'x'", "no shard has a column 'current_user'"),
        ("\"rows that are judged\".text = 'x'", "no shard has a column 'rows that are judged'"),
        ("whole like 'x'", "shard 'a': Binder Error: No function matches"),
        ("meta.langs = 'en'", "shard 'a': Binder Error: Could not find key \"langs\" in struct"),
        ("text.lang = 'en'", "shard 'a': Binder Error: Cannot extract field 'lang' .*; JSON is text here: "),
        ("price", "shard 'a': it is neither true nor false, but of type DECIMAL"),
        ("text", "shard 'a': it is neither true nor false, but of type VARCHAR"),
        ("day > 'soon'", "shard 'a': Conversion Error: "),
        ("text > 3", "shard 'a': Binder Error: Cannot compare"),
    ],
)
def test_what_does_not_fit_is_one_line_before_anything_is_made(condition: str, line: str) -> None:
    with pytest.raises(FilterSettingError, match=line) as told:
        SampleCondition(condition).fitted({"a": SOURCE.data.schema}, [], "")
    assert str(told.value).startswith(f"keep_samples: {condition!r}: ")
    assert "\n" not in str(told.value)


def test_an_image_has_its_own_value_else_that_of_its_sample() -> None:
    types = pa.schema([("alt", pa.string()), ("license", pa.string()), ("width", pa.int64())])
    images = [{"alt": "own", "width": 9000}, {}, {"license": "other"}]
    source = batch(
        {"license": "cc0", "images": images, "width": 9000},
        {"license": "x", "alt": "of all", "images": images},
        types=types,
    )

    def images_kept(condition: str) -> list[tuple[str, int]]:
        chain = FilterChain.of([ImageCondition(condition)]).fitted({"a": source.data.schema}, [], "")
        rows = chain(source).batch.data.filter(pa.compute.field("modality") == "image").to_pylist()
        return [(row["sample_id"], row["position"]) for row in rows]

    assert images_kept("alt is not null") == [("s0", 0), ("s1", 0), ("s1", 1), ("s1", 2)]
    assert images_kept("alt = 'of all'") == [("s1", 1), ("s1", 2)]
    assert images_kept("license = 'cc0'") == [("s0", 0), ("s0", 1)]
    assert images_kept("position > 0 and license = 'other'") == [("s0", 2), ("s1", 2)]
    assert len(images_kept("content_type = 'image/png'")) == 6
    # The column ``width`` says 9000: the score comes first.
    assert len(images_kept("width = 30")) == 6


def test_a_shard_without_a_column_sees_null_of_the_type_that_others_have() -> None:
    plain = batch({"words": 1}, {}, types=pa.schema([("words", pa.int64())]))
    empty = batch({}, {}, types=pa.schema([("stamp", pa.null()), ("meta", pa.null())]))
    others = [SOURCE.data.schema]
    for condition in ("year(stamp) = 2024", "meta.lang = 'en'", "len(tags) > 0"):
        for source in (plain, empty):
            schemas = {"b": source.data.schema}
            chain = FilterChain.of([SampleCondition(f"({condition}) is null")]).fitted(schemas, others, "")
            assert chain(source).batch.num_samples == 2
    with pytest.raises(FilterSettingError, match="no shard has a column 'stamp'"):
        SampleCondition("year(stamp) = 2024").fitted({"b": plain.data.schema}, [], "")
    with pytest.raises(FilterSettingError, match="shard 'b': Binder Error"):
        SampleCondition("stamp like '2024%'").fitted({"b": empty.data.schema}, others, "")


def test_each_shard_is_held_to_its_own_types() -> None:
    first, second = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.string())])
    with pytest.raises(FilterSettingError, match="shard 'b': Binder Error"):
        SampleCondition("n > 3").fitted({"a": first, "b": second, "c": second}, [], "")
    SampleCondition("n::varchar > '3'").fitted({"a": first, "b": second}, [], "")


def test_names_that_sql_cannot_tell_apart() -> None:
    both = pa.schema([("Url", pa.string()), ("URL", pa.string())])
    with pytest.raises(FilterSettingError, match="'url' may be 'URL' or 'Url': put it in quotation marks"):
        SampleCondition("url = 'x'").fitted({"a": both}, [], "")
    with pytest.raises(FilterSettingError, match="are two columns: SQL cannot tell them apart"):
        SampleCondition("\"Url\" = 'x' or \"URL\" = 'y'").fitted({"a": both}, [], "")
    SampleCondition("\"Url\" = 'x'").fitted({"a": both}, [], "")


def test_only_named_columns_go_to_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    judged = SampleCondition.judged

    def noting(self: Any, scores: Any, columns: pa.Table) -> Any:
        seen.update(columns.column_names)
        return judged(self, scores, columns)

    monkeypatch.setattr(SampleCondition, "judged", noting)
    assert kept("text = 'good' and json->>'n' = '3'", SOURCE) == [0]
    assert seen - {""} == {"text", "json"}


def test_a_sample_without_metadata_has_no_columns_but_its_id() -> None:
    rows = [item("a", 0, "image", binary_content=PICTURE) | {"text": "own"}]
    source = InterleavedBatch(
        pa.Table.from_pylist(rows, schema=pa.schema([*INTERLEAVED_SCHEMA, ("text", pa.string())]))
    )
    for condition in ("text is null and sample_id = 'a'", "images = 1"):
        assert FilterChain.of([SampleCondition(condition)])(source).batch.num_rows == 1
    assert FilterChain.of([ImageCondition("text = 'own'")])(source).batch.num_rows == 1


def test_a_text_has_its_own_value_else_that_of_its_sample() -> None:
    types = pa.schema([("role", pa.string()), ("license", pa.string())])
    rows = [item("a", content_type="application/json") | {"license": "cc0"}]
    rows += [item("a", at, text_content="one two") | {"role": role} for at, role in enumerate(("user", None))]
    source = InterleavedBatch(pa.Table.from_pylist(rows, schema=pa.schema([*INTERLEAVED_SCHEMA, *types])))
    for condition, left in (
        ("role = 'user' and license = 'cc0'", [-1, 0]),
        ("words = 2 and position = 1", [-1, 1]),
    ):
        made = chain_of([TextCondition(condition)])
        assert made is not None
        made = made.fitted({"a": source.data.schema}, [], "")
        assert made(source).batch.data["position"].to_pylist() == left
