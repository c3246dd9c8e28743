"""Set-wide statistics: occurrences and percent ranks of the values of all shards."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mm_assets.filters import set_statistics
from mm_assets.filters.set_statistics import (
    SetStatistics,
    StatisticError,
    StatisticsCollector,
    StatisticsFile,
)


def computed(**parts: list[pa.Array]) -> pa.Table:
    with StatisticsCollector(parts) as collector:
        for name, arrays in parts.items():
            for array in arrays:
                collector.add(name, array)
        return collector.table()


def statistics(**values: list[object]) -> SetStatistics:
    return SetStatistics(computed(**{name: [pa.array(part)] for name, part in values.items()}))


def test_a_value_is_counted_in_all_parts() -> None:
    rng = random.Random(5)
    values = [rng.choice([None, "", "ü", "http://a/b?c", *map(str, range(40))]) for _ in range(300)]
    parts = [pa.array(values[:70]), pa.array([], pa.string()), pa.array(values[70:], pa.large_string())]

    found = SetStatistics(computed(url_occurrences=parts)).of("url_occurrences", pa.array(values))

    assert found.to_pylist() == [None if value is None else values.count(value) for value in values]


def test_a_value_that_was_not_there_occurs_once() -> None:
    assert statistics(x_occurrences=["a", "a"]).of("x_occurrences", pa.array(["b", None])).to_pylist() == [
        1,
        None,
    ]


def test_numbers_and_bytes_are_counted_by_their_value() -> None:
    assert statistics(n_occurrences=[3, 3, 4]).of("n_occurrences", pa.array([3, 4])).to_pylist() == [2, 1]
    assert statistics(b_occurrences=[b"\xff", b"\xff"]).of(
        "b_occurrences", pa.array([b"\xff"])
    ).to_pylist() == [2]


@pytest.mark.parametrize("size", [1, 3, 10, 9_999, 10_000, 10_001, 25_000])
def test_a_percent_rank_keeps_the_top_share_exactly(size: int) -> None:
    values = np.random.default_rng(size).permutation(size).astype(float)
    ranks = statistics(v_percent_rank=values.tolist()).of("v_percent_rank", pa.array(values)).to_numpy()

    for percent in (0, 1, 30, 50, 70, 99):
        kept = set(values[ranks >= percent / 100].tolist())
        assert kept == set(range(-(-percent * size // 100), size)), percent


def test_equal_values_rank_as_the_last_of_them() -> None:
    found = statistics(v_percent_rank=[1, 2, 2, 2, 3]).of("v_percent_rank", pa.array([0, 1, 2, 3, 9]))
    assert found.to_pylist() == [0.0, 0.0, 0.6, 0.8, 0.8]


def test_nan_and_null_have_no_rank_and_change_none() -> None:
    found = statistics(v_percent_rank=[1.0, None, float("nan"), 2.0])
    assert found.counted == {"v_percent_rank": 2}
    values = pa.array([1.0, None, float("nan"), 2.0])
    assert found.of("v_percent_rank", values).to_pylist() == [0.0, None, None, 0.5]


def test_a_set_without_values_has_statistics() -> None:
    found = statistics(v_percent_rank=[None], u_occurrences=[None])
    assert found.of("v_percent_rank", pa.array([1.0])).to_pylist() == [0.0]
    assert found.of("u_occurrences", pa.array(["a"])).to_pylist() == [1]


def test_keys_with_the_same_first_half_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_first_half(data: bytes) -> bytes:
        return b"\0" * 8 + data.rjust(8, b"\0")

    monkeypatch.setattr(set_statistics.xxhash, "xxh3_128_digest", same_first_half)
    found = statistics(x_occurrences=["a", "b", "b", "c", "c", "c"])
    assert found.of("x_occurrences", pa.array(["c", "b", "a", "d"])).to_pylist() == [3, 2, 1, 1]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("x_percent_rank", "text", "x_percent_rank: it is computed of numbers, not of string"),
        ("x_percent_rank", True, "x_percent_rank: it is computed of numbers, not of bool"),
        (
            "x_occurrences",
            [1],
            "x_occurrences: it is computed of values such as text and numbers, not of list<",
        ),
    ],
)
def test_what_a_statistic_cannot_be_taken_of(name: str, value: object, line: str) -> None:
    with pytest.raises(StatisticError) as caught:
        computed(**{name: [pa.array([value])]})
    assert str(caught.value).startswith(line)


def test_stored_statistics_are_the_same_and_earlier_ones_stay(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert StatisticsFile.newest(root) is None
    first = StatisticsFile.publish(root, computed(x_occurrences=[pa.array(["a", "a"])]))
    again = StatisticsFile.publish(root, computed(x_occurrences=[pa.array(["a", "a"])]))
    second = StatisticsFile.publish(root, computed(x_occurrences=[pa.array(["a"] * 3)]))

    assert again == first != second == StatisticsFile.newest(root)
    for file, count in ((first, 2), (second, 3)):
        assert file.read().of("x_occurrences", pa.array(["a"])).to_pylist() == [count]
