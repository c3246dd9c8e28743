"""Distributions and labels of the report, and what of texts may be published."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.view import shard_report
from mm_assets.view.preview_page import _short, spread_svg
from mm_assets.view.report import RAW, Copies, Report, Stage, _add, summary
from mm_assets.view.report_page import _public, report_page
from mm_assets.view.shard_report import (
    _TO_LABELS,
    DOMAINS,
    LANGUAGES,
    Amounts,
    Labels,
    ShardReport,
    Spread,
    _count_losses,
)

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(st.lists(st.tuples(NUMBERS, st.booleans())), st.lists(st.tuples(NUMBERS, st.booleans())))
def test_a_spread_counts_each_number_once_within_its_bin(
    one: list[tuple[float, bool]], other: list[tuple[float, bool]]
) -> None:
    whole, part = Spread(), Spread()
    for spread, values in ((whole, one), (part, other)):
        numbers, dropped = [value for value, _ in values], [is_dropped for _, is_dropped in values]
        spread.add(np.array(numbers, np.float64), np.array(dropped, np.bool_))
    whole.merge(part)
    values, kept, dropped_counts = whole.counts()
    finite = [(value, is_dropped) for value, is_dropped in [*one, *other] if np.isfinite(value)]
    assert kept.sum() == sum(not is_dropped for _, is_dropped in finite)
    assert dropped_counts.sum() == sum(is_dropped for _, is_dropped in finite)
    assert list(values) == sorted(values)
    for value, _ in finite:
        with np.errstate(over="ignore"):
            nearest = values[np.abs(values - value).argmin()]
        assert abs(nearest - value) <= abs(value) / 63 + 1e-300


def test_small_whole_numbers_have_bins_of_their_own() -> None:
    spread = Spread()
    spread.add(np.arange(128.0), np.zeros(128, np.bool_))
    values, kept, _ = spread.counts()
    assert values.tolist() == list(range(128)) and kept.tolist() == [1] * 128


def test_a_plot_of_one_value_or_of_none_dropped_can_be_drawn() -> None:
    for values in ([3.0], [0.0, 1e9], [-5.0, 5.0]):
        numbers = np.array(values)
        svg = spread_svg("<x>", numbers, np.ones(len(values)), np.zeros(len(values)))
        assert svg.startswith("<svg") and "&lt;x&gt;" in svg and "up to 1" in svg


def test_labels_of_an_axis_are_short_and_do_not_overlap() -> None:
    for values in ([2e4, 1.2e6], [1.0, 3e11], [1e6, 9e6]):
        numbers = np.array(values)
        svg = spread_svg("x", numbers, np.ones(len(values)), np.zeros(len(values)))
        found = re.findall(r"<text x='([\d.]+)' y='\d+' text-anchor='middle'>([^<]*)<", svg)
        assert len(found) > 2 and all(len(label) <= 5 for _, label in found)
        sides = [(float(x) - 5 * len(label), float(x) + 5 * len(label)) for x, label in found]
        assert all(end < start for (_, end), (start, _) in pairwise(sorted(sides)))
    assert [_short(number) for number in (0.5, 9999, 20_000, 1.2e6, -3e9)] == [
        *("0.5", "9,999", "20k", "1.2M", "-3G")
    ]


def test_what_lies_behind_damage_is_said_to_be_unknown() -> None:
    stage = Stage("curated_parquet", RAW, 3, Amounts(1, texts=1))
    report = Report("x", datetime.now(UTC), 3, {"curated_parquet": stage})
    assert summary(report).endswith("from 3 raw shards, 0 items in quarantine.")
    assert "behind damage" not in report_page(report)
    part = ShardReport()
    items = {"position": [None, 0], "modality": [None, "text"], "byte_size": [None, 3]}
    of_both = {"outcome": ["quarantined"] * 2, "kind": ["damaged"] * 2}
    _count_losses(part, "curated_parquet", pa.table({**items, **of_both}))
    _add(report, part)
    said = ", and an unknown number behind damage in 1 shard"
    assert summary(report).endswith(f"1 item in quarantine{said}.")
    assert report_page(report).count(said) == 2


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("https://www.Example.org/a/b?c", "example.org"),
        ("http://user:secret@host.example:8080/x", "host.example"),
        ("ftp://ftp.example.org/x", "ftp.example.org"),
        ("javascript://www.example.org/%0Aalert(1)", None),
        (" JavaScript:alert(1)", None),
        ("s3://bucket/key", None),
        ("example.org:8080", "example.org:8080"),
        ("example.org", "example.org"),
        ("", ""),
        (None, None),
    ],
)
def test_domains_of_urls(text: str | None, label: str | None) -> None:
    assert _TO_LABELS[DOMAINS](pa.chunked_array([pa.array([text], pa.string())])).to_pylist() == [label]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('{"en": 0.2, "de": 0.7}', "de"),
        ('"{\\"fr\\": 0.9}"', "fr"),
        ("{}", None),
        ("{broken", "{broken"),
        ('{"a": "b", "c": 1}', '{"a": "b", "c": 1}'),
        ("en", "en"),
        (None, None),
    ],
)
def test_languages_of_codes_and_scores(text: str | None, label: str | None) -> None:
    assert _TO_LABELS[LANGUAGES](pa.chunked_array([pa.array([text], pa.string())])).to_pylist() == [label]


def test_of_too_many_labels_the_rare_ones_go_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_report, "_MOST_LABELS", 2)
    labels, more = Labels(), Labels()
    labels.kept.update({"a": 9, "b": 1, "c": 8})
    more.kept.update({"d": 1, "e": 7, "a": 1})
    labels.merge(more)
    assert labels.kept == {"a": 10, "c": 8} and labels.is_cut


def test_copies_are_counted_over_all_shards() -> None:
    digests = [np.array([1, 2, 3], np.uint64), np.array([2, 3, 3, 9], np.uint64)]
    assert Copies.among(digests) == Copies(of=7, groups=2, surplus=3, largest=3)
    assert Copies.among([]) == Copies(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("/home/ada/data/x.tar: not JSON", "…/x.tar: not JSON"),
        ('{"drop_ids": "file:///srv/lists/ids.txt"}', '{"drop_ids": "…/ids.txt"}'),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("shard a/b.tar: 1/2 of it", "shard a/b.tar: 1/2 of it"),
    ],
)
def test_no_folder_of_the_machine_is_published(text: str, published: str) -> None:
    assert _public(text) == published
