"""Conditions over scores: what they may say, and what of anything else is told."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from mm_assets.filters.condition import (
    ConditionError,
    ImageCondition,
    SampleCondition,
    evaluate,
    paths_in,
    refuse_other_than_condition,
)

SCORES = pa.table(
    {"width": [100, 300, None], "format": ["jpg", "gif", "png"], "aspect_ratio": [1.0, 2.0, 3.0]}
)


@pytest.mark.parametrize(
    ("condition", "columns", "holds"),
    [
        ("width >= 200", ("width",), [False, True, False]),
        ("WIDTH >= 200 AND Format = 'gif'", ("format", "width"), [False, True, False]),
        ("width >= 200 and format != 'gif'", ("format", "width"), [False, False, False]),
        (
            "format in ('jpg', 'png') or aspect_ratio between 2 and 2.5",
            ("aspect_ratio", "format"),
            [True] * 3,
        ),
        ("not (width > 150)", ("width",), [True, False, False]),
        ("width is null or format == 'jpg'", ("format", "width"), [True, False, True]),
        ("case when width > 150 then true else false end", ("width",), [False, True, False]),
        ("lower(format) like 'j%' or regexp_matches(format, '^g')", ("format",), [True, True, False]),
        ("greatest(width, 200) / 100 = 2", ("width",), [True, False, True]),
        ("-width % 2 = 0 and abs(-width) > 200", ("width",), [False, True, False]),
        ("width::varchar = '300'", ("width",), [False, True, False]),
        ("true", (), [True] * 3),
        ("width // (width - 100) >= 1", ("width",), [False, True, False]),  # by zero: null
        ("width % 0 = 1", ("width",), [False] * 3),
        ("null", (), [False] * 3),
        ("width > 1 -- a remark", ("width",), [True, True, False]),
    ],
)
def test_conditions(condition: str, columns: tuple[str, ...], holds: list[bool]) -> None:
    assert sorted({name.lower() for (name,) in paths_in(condition)}) == list(columns)
    assert evaluate(condition, SCORES) == holds


def test_domains() -> None:
    """As the report lists them."""
    urls = {
        "https://www.Example.com/a?b": "example.com",
        "HTTP://user:secret@e.org:80#x": "e.org",
        "ftp://mirror.e.org": "mirror.e.org",
        "e.org/x": None,
        "s3://bucket/key": None,
        "javascript:alert(1)": None,
        "": None,
    }
    table = pa.table({"url": [*urls, None]})
    for domain in ("example.com", "e.org", "mirror.e.org"):
        holds = [found == domain for found in (*urls.values(), None)]
        assert evaluate(f"domain(url) = '{domain}'", table) == holds
    assert evaluate("domain(url) is null", table) == [found is None for found in (*urls.values(), None)]
    assert evaluate("domain(URL) not in ('e.org')", table) == [True, False, True] + [False] * 5
    assert paths_in("Domain(page.url) like '%.org'") == [("page", "url")]


@pytest.mark.parametrize(
    ("condition", "line"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("-- nothing", "SELECT clause without selection list"),
        ("width >", "syntax error"),
        ("1=1) --", "syntax error"),
        ("width > 3; drop table scores", "it is not one condition"),
        ("width > 3) or (1=1", "syntax error"),
        ("true limit 0", "it is not one condition"),
        ("true where false", "it is not one condition|syntax error"),
        ("true from (select 1)", "it is not one condition"),
        ("true union select true", "it is not one condition"),
        ("1=1; select 2", "it is not one condition"),
        ("width > 3 /*", "unterminated"),
        ("width > 3, format", "it is not one condition"),
        ("(select 1)", "not allowed: subquery"),
        ("exists (from 'secret.csv')", "not allowed: subquery"),
        ("width in (select 1)", "not allowed: subquery"),
        ("read_text('/etc/hostname') != ''", "the function 'read_text' is not allowed"),
        ("getenv('HOME') = ''", "the function 'getenv' is not allowed"),
        ("sum(width) > 3", "the function 'sum' is not allowed"),
        ("row_number() over () > 1", "not allowed: window"),
        ("width > ?", "not allowed: parameter"),
        ("*", "not allowed: star"),
        ("x -> 1", "not allowed: lambda"),
        ("columns('x') > 1", "not allowed: star"),
        ("now() > created", "the function 'now' is not allowed"),
        ("json_serialize_sql(a) = 'x'", "the function 'json_serialize_sql' is not allowed"),
        ("repeat(url, 1000000000) != ''", "the function 'repeat' is not allowed"),
        ("list_transform(tags, lambda x: x) is null", "not allowed: lambda|the function 'list_transform'"),
        ("width > 1 " * 2000, "it has more than 10000 characters"),
    ],
)
def test_anything_else_is_refused_in_one_line(condition: str, line: str) -> None:
    with pytest.raises(ConditionError, match=line) as told:
        paths_in(condition)
    assert "\n" not in str(told.value)


def test_what_is_no_number_counts_as_null() -> None:
    scores = pa.table(
        {"bright": [1.0, float("nan"), None], "small": pa.array([float("nan"), 1, 2], pa.float32())}
    )
    assert evaluate("bright > 0.5", scores) == [True, False, False]
    assert evaluate("bright < 5", scores) == [True, False, False]
    assert evaluate("bright is null", scores) == [False, True, True]
    assert evaluate("not (small > 1)", scores) == [False, True, False]


ODD = pa.table(
    {
        "n": [0.0, 3.0, None],
        "m": [0.0, 0.5, 1.0],
        "far": [float("inf"), 1.0, 1.0],
        "words": [7, 7, 700],
        "images": [0, 1, 1],
        "text": ["nan", "7", "x"],
        "numbers": [[float("nan")], [9.0], []],
        "meta": [{"x": float("nan")}, {"x": 9.0}, None],
        "deep": [{"y": [{"x": float("nan")}]}, {"y": [{"x": 9.0}]}, None],
    }
)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("n / m > 5", [False, True, False]),
        ("not (n / m <= 5)", [False, True, False]),
        ("n % m > 5 or n // m > 5", [False, True, False]),
        ("n / m is null", [True, False, True]),
        ("words / images > 100", [False, False, True]),
        ("ln(n) > 0", [False, True, False]),
        ("not (ln(m) > 0)", [False, True, True]),
        ("log10(n) > 0 or n = 0", [True, True, False]),
        ("sqrt(n - 1) >= 0", [False, True, False]),
        ("far - far >= 0", [False, True, True]),
        ("far - far > 5 or m > 0.7", [False, False, True]),
        ("not (far * n between 0 and 2)", [False, True, False]),
        ("far > 5", [True, False, False]),  # an infinity of the data is a number
        ("text::double > 5", [False, True, False]),
        ("coalesce(far - far, 7) > 5", [True, False, False]),
        ("greatest(far - far, 1) > 5", [False, False, False]),
        ("case when n = 0 then far - far else 9 end > 5", [False, True, True]),
        ("(far - far) not in (1, 2)", [False, True, True]),
        ("numbers[1] > 5", [False, True, False]),
        ("not (numbers[1] < 5)", [False, True, False]),
        ("meta.x > 5", [False, True, False]),
        ("meta.x is not null", [False, True, False]),
        ("deep.y[1].x > 5", [False, True, False]),
    ],
)
def test_what_comes_to_no_number_in_between_counts_as_null(condition: str, holds: list[bool]) -> None:
    refuse_other_than_condition(condition, ODD.schema)
    assert evaluate(condition, ODD) == holds


def test_comparisons_inside_each_other_take_no_time() -> None:
    condition = "n + 1 > 2"
    for _ in range(60):
        condition = f"(({condition})::int + 1 > 1)"
    assert evaluate(condition, ODD) == [False, True, False]


@pytest.mark.parametrize(
    "told",
    [
        "text like 'n%' escape '!'",
        "text ilike 'N''%'",
        "not regexp_matches(text, '\\d\\n')",
        "date_part('year', timestamp '2020-01-02 03:04:05') = 2020",
        "text = 'it''s -- no remark' or words::decimal(9, 2) * 1.50 = 10.5",
        "'x' in ('x', text) and \"text\" != ''",
        "words = 7 -- a remark",
    ],
)
def test_guarded_conditions_say_the_same(told: str) -> None:
    guarded = evaluate(f"({told}\n) and n + 0 is not distinct from n", ODD)
    assert guarded == evaluate(told, ODD)


TYPES = pa.schema([("width", pa.int32()), ("format", pa.string()), ("bright", pa.float64())])


@pytest.mark.parametrize("condition", ["width > 5", "null", "format = 'gif' or bright is null", "true"])
def test_what_may_be_true(condition: str) -> None:
    refuse_other_than_condition(condition, TYPES)


@pytest.mark.parametrize(
    ("condition", "line"),
    [
        ("5", "it is neither true nor false, but of type INTEGER: compare it with something"),
        ("width", "it is neither true nor false, but of type INTEGER: compare it with something"),
        ("'true'", "it is neither true nor false, but of type VARCHAR: compare it with something"),
        ("bright + 1 -- more", "it is neither true nor false, but of type DOUBLE: compare it with something"),
        ("width like '3%'", "Binder Error: No function matches"),
        ("bright = 'x'", "Conversion Error: Could not convert string 'x' to DOUBLE"),
        ("regexp_matches(format, '(')", "Invalid Input Error: missing "),
    ],
)
def test_what_is_no_condition(condition: str, line: str) -> None:
    with pytest.raises(ConditionError, match=f"^{line}"):
        refuse_other_than_condition(condition, TYPES)


@pytest.mark.parametrize("condition", ["format > 3", "width like '3%'"])
def test_types_that_do_not_fit(condition: str) -> None:
    with pytest.raises(ConditionError, match="Error: "):
        evaluate(condition, SCORES)


def test_what_cannot_be_computed_for_a_row_does_not_hold_for_it() -> None:
    condition = "width * width * width > 1"
    scores = pa.table({"width": pa.array([1 << 40, 3, None], pa.int64())})
    refuse_other_than_condition(condition, scores.schema)
    assert evaluate(condition, scores) == [False, True, False]


def test_files_are_out_of_reach_even_of_what_is_not_parsed_first() -> None:
    with pytest.raises(ConditionError, match="disabled by configuration"):
        refuse_other_than_condition("(select count(*) from read_text('/etc/hostname')) > 0", TYPES)


def test_filters_name_the_setting_and_ask_for_what_they_look_at() -> None:
    assert ImageCondition("sharpness > 3 and width > 2").needs() == ("sharpness",)
    assert SampleCondition("language = 'en' and words > 2 and images_per_word < 1").needs() == ("language",)
    with pytest.raises(ValueError, match="^keep_images: '5': it is neither true nor false"):
        ImageCondition("5")


def test_a_process_with_another_thread_ends_in_silence() -> None:
    code = (
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "from mm_assets.filters.condition import paths_in\n"
        "print(paths_in('width > 1'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[('width',)]\n", "")
