"""Clusters: each copy is alike its survivor, and no two survivors are alike."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.duplicates.clusters import Clusters, firsts_of_equal
from mm_assets.duplicates.pairs import Pairs


def pairs_of(*places: tuple[int, int]) -> Pairs:
    first, second = (np.array([place[side] for place in places], np.int64) for side in (0, 1))
    return Pairs(first, second, (first * 10 + second).astype(np.float32))


def clusters_of(count: int, *places: tuple[int, int]) -> Clusters:
    return Clusters.of(np.arange(count), np.arange(count), pairs_of(*places))


def test_no_chain_joins_what_is_not_alike() -> None:
    """0 is alike 1, and 1 is alike 2: 2 stays. Is the middle preferred, both others are its copies."""
    found = clusters_of(3, (0, 1), (1, 2))
    assert found.survivors.tolist() == [0, 0, 2]
    assert found.copies.tolist() == [1]
    assert clusters_of(3, (0, 1), (0, 2)).survivors.tolist() == [0, 0, 0]


def test_equal_items_follow_their_first() -> None:
    """2 is equal to 0; 4 is equal to 3, which is alike 0."""
    firsts = np.array([0, 1, 0, 3, 3])
    found = Clusters.of(firsts, np.array([0, 1, 3]), pairs_of((0, 2)))
    assert found.survivors.tolist() == [0, 1, 0, 0, 0]
    assert np.isnan(found.measures[:3]).all()
    assert found.measures[3:].tolist() == [2.0, 2.0]
    contents = np.array([7, 8, 7, 7, 9])
    assert np.nan_to_num(found.with_equal(contents, 0).measures, nan=-1).tolist() == [-1, -1, -1, -1, 2]


@given(st.sets(st.tuples(st.integers(0, 12), st.integers(0, 12))))
def test_survivors_are_those_of_a_greedy_choice(edges: set[tuple[int, int]]) -> None:
    ordered = sorted({(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]})
    found = clusters_of(13, *ordered).survivors.tolist()
    stays: list[int] = []
    for item in range(13):
        near = [other for other in stays if (other, item) in ordered]
        assert found[item] == (near[0] if near else item)
        stays += [] if near else [item]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1))
def test_first_of_equal_keys(keys: list[tuple[int, int, int]]) -> None:
    """Also of keys that are alike at their beginning alone."""
    assert firsts_of_equal(np.array(keys, np.uint64)).tolist() == [keys.index(key) for key in keys]
