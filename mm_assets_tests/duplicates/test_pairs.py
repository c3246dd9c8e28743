"""Pairs of near duplicates: what a comparison of all with all finds. Clusters: no two survivors are alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets import duplicates
from mm_assets.duplicates import (
    LEADERS,
    Clusters,
    Integers,
    Pairs,
    Words,
    firsts_of_equal,
    near_hashes,
    near_signatures,
    near_vectors,
)
from mm_assets.filters.duplicates import MOST_BITS


def hashes_with_copies(count: int, seed: int = 0, most: int = 55) -> Words:
    """Hashes, a third of which are others with some of their bits flipped."""
    draw = np.random.default_rng(seed)
    found = draw.integers(0, 1 << 63, (count, 4), dtype=np.uint64) << np.uint64(1)
    copies = count // 3
    bits = np.unpackbits(found[draw.integers(copies, count, copies)].view(np.uint8), axis=1)
    for row in bits:
        row[draw.choice(256, draw.integers(1, most + 1), replace=False)] ^= 1
    found[:copies] = np.packbits(bits, axis=1).view(np.uint64)
    return found


def as_dict(found: Pairs) -> dict[tuple[int, int], float]:
    places = zip(found.first.tolist(), found.second.tolist(), strict=True)
    return dict(zip(places, found.measure.tolist(), strict=True))


def all_with_all(hashes: Words, most: int) -> dict[tuple[int, int], float]:
    found = {}
    for first in range(len(hashes)):
        distances = np.bitwise_count(hashes[first + 1 :] ^ hashes[first]).sum(axis=1)
        for second in np.flatnonzero(distances <= most).tolist():
            found[first, first + 1 + second] = float(distances[second])
    return found


@pytest.mark.parametrize("many", [0, 10**6], ids=["as many", "as few"])
@pytest.mark.parametrize("most", [0, 15, 16, 31, 40, 47])
def test_all_near_hashes_are_found(most: int, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_MANY", many)
    hashes = hashes_with_copies(3000)
    expected = all_with_all(hashes, most)
    assert as_dict(near_hashes(hashes, most)) == expected
    assert bool(expected) == (most > 0)


@pytest.mark.parametrize(("most", "bits"), [(31, 2), (47, 3)])
def test_hashes_that_differ_in_all_parts(most: int, bits: int) -> None:
    """The least that the search can be sure of."""
    first = np.zeros((1, 16), np.uint16)
    second = np.full((1, 16), (1 << bits) - 1, np.uint16)
    second[0, 5] >>= 1
    hashes = np.concatenate([first, second]).view(np.uint64)
    assert as_dict(near_hashes(hashes, most)) == {(0, 1): float(most)}


def test_nearly_all_hashes_of_the_greatest_distance_are_found() -> None:
    hashes = hashes_with_copies(3000, most=MOST_BITS)
    expected = all_with_all(hashes, MOST_BITS)
    found = as_dict(near_hashes(hashes, MOST_BITS))
    assert found.items() <= expected.items() and len(found) > 0.98 * len(expected)


def test_a_crowd_is_compared_with_the_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "CROWDED", 40)
    monkeypatch.setattr(duplicates, "LEADERS", 16)
    draw = np.random.default_rng(0)
    hashes = np.zeros((100, 16), np.uint16)  # all share 15 parts
    hashes[:, 3] = draw.permutation(1 << 16)[:100]
    found = as_dict(near_hashes(hashes.view(np.uint64), 31))
    assert {second for first, second in found if first == 0} == set(range(1, 100))
    assert {first for first, _ in found if first >= 16} == set()


def test_no_hashes() -> None:
    assert len(near_hashes(np.zeros((0, 4), np.uint64), 31)) == 0
    with pytest.raises(ValueError, match="0 to 64 bits, not 65"):
        near_hashes(np.zeros((0, 4), np.uint64), 65)


def signatures_with_copies(count: int, shares: list[float]) -> tuple[np.ndarray, Integers]:
    """Signatures, of which those behind ``count`` are copies with these shares of equal values."""
    draw = np.random.default_rng(1)
    found = draw.integers(0, 1 << 16, (count, 112), dtype=np.uint16)
    originals = draw.permutation(count)[: len(shares)]
    copies = found[originals]
    for copy, share in zip(copies, shares, strict=True):
        places = draw.choice(112, round(112 * (1 - share)), replace=False)
        copy[places] ^= 1
    return np.concatenate([found, copies]), originals


def test_signatures_that_are_alike_are_found() -> None:
    signatures, originals = signatures_with_copies(2000, [0.9] * 500 + [0.7] * 500)
    found = as_dict(near_signatures(signatures, np.arange(len(signatures)), 0.8))
    expected = {(original, 2000 + copy) for copy, original in enumerate(originals[:500].tolist())}
    assert len(expected.difference(found)) <= 2
    assert set(found) <= expected
    assert set(found.values()) == {float(np.float32(101 / 112))}


def test_signatures_of_some_rows_by_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    signatures, originals = signatures_with_copies(50, [0.95] * 3)
    rows = np.array([52, 3, *originals.tolist(), 50])
    found = as_dict(near_signatures(signatures, rows, 0.8))
    assert set(found) == {(0, 2 + 2), (2, 5)}


def test_a_crowd_of_signatures_is_compared_with_the_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "CROWDED", 40)
    monkeypatch.setattr(duplicates, "LEADERS", 8)
    signatures = np.zeros((100, 112), np.uint16)
    signatures[:, 0] = range(100)
    found = near_signatures(signatures, np.arange(100), 0.8)
    assert set(as_dict(found)) == {
        (first, second) for second in range(100) for first in range(min(second, 8))
    }


def planted_vectors(seed: int, kinds: int, of_each: int, spread: float) -> npt.NDArray[np.float32]:
    """Unit vectors around some that are at random."""
    random = np.random.default_rng(seed)
    centres = np.repeat(random.standard_normal((kinds, 64)), of_each, axis=0)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    found = centres + random.standard_normal(centres.shape) * spread / 8
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return random.permutation(found).astype(np.float32)


@pytest.mark.parametrize(("exact", "least_recall"), [(10**6, 1.0), (0, 0.99)])
def test_vectors_are_found_as_by_brute_force(
    exact: int, least_recall: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "EXACT_VECTORS", exact)
    vectors = planted_vectors(1, 800, 4, 0.2)
    rows = np.random.default_rng(2).permutation(len(vectors))[:3000]
    cosines = (vectors[rows].astype(np.float64) @ vectors[rows].T.astype(np.float64)).astype(np.float32)
    expected = {
        (int(a), int(b)) for a, b in zip(*np.nonzero(cosines >= np.float32(0.95)), strict=True) if a < b
    }
    assert len(expected) > 1000
    pairs = near_vectors(vectors, rows, 0.95)
    found = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert found <= expected and len(found) >= least_recall * len(expected)
    assert np.allclose(pairs.measure, cosines[pairs.first, pairs.second])
    again = near_vectors(vectors, rows, 0.95)
    assert again.first.tolist() == pairs.first.tolist() and again.measure.tolist() == pairs.measure.tolist()


def test_of_a_crowd_of_equal_vectors_each_is_compared_with_leaders() -> None:
    vectors = np.ones((3000, 64), np.float32) / 8
    pairs = near_vectors(vectors, np.arange(3000), 0.95)
    counts = np.bincount(pairs.second, minlength=3000)
    assert counts.tolist() == [min(place, LEADERS) for place in range(3000)]
    assert pairs.first.max() < LEADERS


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
