"""Duplicates: which images and documents of a data set are alike, and which one of them stays.

Here are pairs of near ones among many hashes, vectors or signatures, each verified, and their clusters.

The searches are given what they compare in the order of preference, without equal ones, and name each by its
place in that order. They need no database: what may be alike is brought together by sorting parts of the
values, one part at a time, which takes memory for a few numbers a value.

* `near_hashes`: 256-bit hashes that differ in few bits. Of two that differ in at most 31 bits, one of 16
  parts of 16 bits differs in at most one bit; in at most 47 bits, in at most two: up to there recall is 1.
  Beyond, no more than two bits of a part are tried: of those that differ in 64 bits, 97 % are found.
* `near_vectors`: unit vectors with a great cosine. Recall is 1 up to `EXACT_VECTORS`, then by bands of bits.
* `near_signatures`: MinHash signatures with many equal values. Recall depends on the similarity (`BANDS`).

What is crowded is not compared in full, or it would take the square of its number: where more than `CROWDED`
values share a part, each is compared with the `LEADERS` that are preferred most.

`Clusters` have one survivor each: in the order of preference, each item either stays, or is a copy of the
most preferred of those that stay and that it is itself alike. So each copy is alike its survivor, no two
survivors are alike, and no chain joins what is not: of three of which only neighbours are alike, the one in
the middle has two copies if it is preferred; else it is a copy of one end, and both ends stay. Clusters
depend on nothing but the items in that order: not on when they came.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from mm_assets.filters.duplicates import MOST_BITS

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

CROWDED: Final = 2048
"""Values that share a part and are compared with each other."""

LEADERS: Final = 64
"""Values that each is compared with where more share a part."""

THREADS: Final = 2

BANDS: Final = 14
"""Bands of a signature of 112 values.

Two signatures are compared if the 8 values of one band are equal: so are 92 % of those with a similarity of
0.8, and 99.9 % of those with 0.9.
"""


@dataclass(frozen=True)
class Pairs:
    """Pairs of near duplicates: ``first`` is preferred to ``second``, ``measure`` is their distance or
    similarity. Each pair is there once.
    """

    first: Integers
    second: Integers
    measure: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, parts: Iterable[Pairs]) -> Self:
        """Return the pairs of all parts, each once, in order."""
        found = list(parts)
        first, second, measure = (
            np.concatenate([np.zeros(0, kind), *(getattr(part, name) for part in found)])
            for name, kind in (("first", np.int64), ("second", np.int64), ("measure", np.float32))
        )
        _, places = np.unique(_packed(first, second), return_index=True)
        return cls(first[places], second[places], measure[places])

    def among(self, places: Integers) -> Pairs:
        """Return the pairs of items by their places among more items, in the same order."""
        return Pairs(places[self.first], places[self.second], self.measure)


def _packed(first: Integers, second: Integers) -> Words:
    """Return one number for each pair, in their order."""
    return first.astype(np.uint64) << np.uint64(32) | second.astype(np.uint64)


_PARTS: Final = 16
_PART_BITS: Final = 16
_BUCKETS: Final = 1 << _PART_BITS
# Hashes that are compared with as many at once; of fewer hashes, most tiles would be empty but for one.
_TILE, _SMALL_TILE = 8, 2
_MANY: Final = 3 * _BUCKETS
_TILES_AT_ONCE: Final = 2048  # so that what is compared stays in the cache of a processor
_HALF: Final = 2  # words of four that are compared first: of two other hashes they differ too much
_MOST_IN_HALF: Final = 40  # bits; of more, they do so too seldom


def near_hashes(hashes: Words, most: int) -> Pairs:
    """Return the pairs of hashes that differ in at most so many bits.

    Args:
        hashes: n x 4 words of 64 bits, all different, in the order of preference.
        most: bits, up to `MOST_BITS`.
    """
    if not 0 <= most <= MOST_BITS:
        raise ValueError(f"a distance of hashes is 0 to {MOST_BITS} bits, not {most}")
    parts = np.ascontiguousarray(hashes).view(np.uint16).reshape(len(hashes), _PARTS)
    with ThreadPoolExecutor(THREADS) as pool:
        return Pairs.of(pool.map(lambda part: _alike_in(hashes, parts[:, part], most), range(_PARTS)))


class _Tiles:
    """Hashes in the order of one part, in tiles of hashes with the same part.

    Attributes:
        places: of the hashes, by place in the tile and number of the tile; -1 where there is none.
        side: hashes of a tile.
        begins: the first tile of each value of the part, and the end.
        leaders: end of those of the preferred hashes of each value; where it is not crowded, of all.
    """

    def __init__(self, hashes: Words, values: npt.NDArray[np.uint16]) -> None:
        order = np.argsort(values, kind="stable")  # the preferred first
        counts = np.bincount(values, minlength=_BUCKETS)
        self.side = _TILE if len(values) >= _MANY else _SMALL_TILE
        tiles = -(-counts // self.side)
        self.begins = np.concatenate([[0], np.cumsum(tiles)])
        self.leaders = self.begins[:-1] + np.where(counts > CROWDED, LEADERS // self.side, tiles)
        ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        slots = np.repeat(self.begins[:-1], counts) + ranks // self.side, ranks % self.side
        self.value_of = np.repeat(np.arange(_BUCKETS), tiles)
        self.places = np.full((self.side, int(self.begins[-1])), -1, np.int64)
        self.places[slots[1], slots[0]] = order
        self.words = np.zeros((4, self.side, int(self.begins[-1])), np.uint64)
        self.words[:, slots[1], slots[0]] = hashes[order].T

    def pairs(self, flipped: int) -> Iterator[tuple[Integers, Integers]]:
        """Yield pairs of tiles to be compared: of values of the part that differ in these bits."""
        tile = np.arange(len(self.value_of))
        other = self.value_of ^ flipped
        if flipped:
            # Both ways where one is crowded: there only leaders are compared with others.
            is_crowded = self.leaders < self.begins[1:]
            both = is_crowded[self.value_of] | is_crowded[other]
            tile = tile[(other > self.value_of) | both]
            at = self.begins[self.value_of[tile] ^ flipped]
        else:
            at = self.begins[self.value_of[tile]]
        end = self.leaders[self.value_of[tile] ^ flipped]
        while len(tile):
            is_open = at < end
            tile, at, end = tile[is_open], at[is_open], end[is_open]
            is_due = at <= tile if not flipped else slice(None)
            yield tile[is_due], at[is_due]
            at = at + 1


def _alike_in(hashes: Words, values: npt.NDArray[np.uint16], most: int) -> Pairs:
    """Return the pairs of hashes whose values of a part differ in few bits, two at most."""
    tiles = _Tiles(hashes, values)
    bits = [1 << bit for bit in range(_PART_BITS)]
    flips = [sum(some) for count in range(min(most // _PARTS, 2) + 1) for some in combinations(bits, count)]
    found = []
    for flipped in flips:
        for ours, theirs in tiles.pairs(flipped):
            for start in range(0, len(ours), _TILES_AT_ONCE):
                some = slice(start, start + _TILES_AT_ONCE)
                found += list(_compared(tiles, ours[some], theirs[some], most))
    return Pairs.of(found)


def _compared(tiles: _Tiles, ours: Integers, theirs: Integers, most: int) -> Iterator[Pairs]:
    """Yield the pairs of hashes in pairs of tiles that differ in few bits."""
    words = tiles.words if most > _MOST_IN_HALF else tiles.words[:_HALF]
    mine = [np.take(word, ours, axis=1) for word in words]
    other = [np.take(word, theirs, axis=1) for word in words]
    differing = np.empty_like(mine[0])
    bits, more = np.empty(differing.shape, np.uint8), np.empty(differing.shape, np.uint8)
    for place in range(tiles.side):
        bits.fill(0)
        for word, another in zip(mine, other, strict=True):
            np.bitwise_count(np.bitwise_xor(word, another[place], out=differing), out=more)
            np.add(bits, more, out=bits)  # all 256 bits count as none: what is near is verified
        near = np.flatnonzero(bits <= most)
        if not len(near):
            continue
        slot, at = np.divmod(near, len(ours))
        first, second = tiles.places[slot, ours[at]], tiles.places[place, theirs[at]]
        is_pair = (first >= 0) & (second >= 0) & (first != second)
        slot, at = slot[is_pair], at[is_pair]
        first, second = first[is_pair], second[is_pair]
        differences = tiles.words[:, slot, ours[at]] ^ tiles.words[:, place, theirs[at]]
        distance = np.bitwise_count(differences).sum(axis=0, dtype=np.int64)
        is_near = distance <= most
        first, second = first[is_near], second[is_near]
        yield Pairs(
            np.minimum(first, second), np.maximum(first, second), distance[is_near].astype(np.float32)
        )


EXACT_VECTORS: Final = 200_000
"""Vectors that are all compared with each other; of more, those with equal bits of one band."""

_PLANES: Final = 20
"""Random hyperplanes of a band; with `_VECTOR_BANDS` bands, 99.8 % of the pairs with a cosine of 0.95 are
compared, and 89 % of those with 0.9."""
_VECTOR_BANDS: Final = 48
_SECONDS_AT_ONCE: Final = 1024
_FIRSTS_AT_ONCE: Final = 8192
_SLACK: Final = 1e-4  # single precision, whose sums depend on the machine: each is verified in double


def near_vectors(vectors: npt.NDArray[np.float32], rows: Integers, least: float) -> Pairs:
    """Return the pairs of vectors with at least this cosine; for each at most `LEADERS`, the preferred ones.

    Args:
        vectors: n x dimensions, of length 1; may be mapped from a file.
        rows: those that are compared, in the order of preference.
        least: 0 to 1.
    """
    by_second = np.zeros(len(rows), np.int64)  # pairs of each
    found: list[Pairs] = []
    if len(rows) <= EXACT_VECTORS:
        for first, second in _near_products(vectors, rows, least):
            near = _verified(vectors, rows, first, second, least)
            place = np.arange(len(near)) - np.searchsorted(near.second, near.second)
            is_kept = by_second[near.second] + place < LEADERS
            found.append(Pairs(near.first[is_kept], near.second[is_kept], near.measure[is_kept]))
            np.add.at(by_second, found[-1].second, 1)
        return Pairs.of(found)
    planes = np.random.default_rng(0).standard_normal((_VECTOR_BANDS, vectors.shape[1], _PLANES), np.float32)
    pairs = Pairs.of([])
    for band in planes:
        known = _packed(pairs.first, pairs.second)
        found = [pairs]
        for first, second in _sharing(_sides(vectors, rows, band)):
            is_new = np.isin(_packed(first, second), known, invert=True)
            found.append(_verified(vectors, rows, first[is_new], second[is_new], least))
        pairs = Pairs.of(found)
    return pairs


def _near_products(
    vectors: npt.NDArray[np.float32], rows: Integers, least: float
) -> Iterator[tuple[Integers, Integers]]:
    """Yield places of pairs whose product is about as great, by the second one."""
    for start in range(0, len(rows), _SECONDS_AT_ONCE):
        seconds = vectors[rows[start : start + _SECONDS_AT_ONCE]]
        for origin in range(0, start + len(seconds), _FIRSTS_AT_ONCE):
            firsts = vectors[rows[origin : min(origin + _FIRSTS_AT_ONCE, start + len(seconds))]]
            second, first = np.nonzero(seconds @ firsts.T >= least - _SLACK)
            second, first = second + start, first + origin
            is_pair = first < second
            yield first[is_pair], second[is_pair]


def _sides(vectors: npt.NDArray[np.float32], rows: Integers, planes: npt.NDArray[np.float32]) -> Words:
    """Return on which side of each plane vectors lie, as the highest bits of a number."""
    weights = np.uint64(1) << np.arange(63, 63 - _PLANES, -1, dtype=np.uint64)
    keys = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), _FIRSTS_AT_ONCE):
        some = slice(start, start + _FIRSTS_AT_ONCE)
        keys[some] = ((vectors[rows[some]] @ planes > 0) * weights).sum(axis=1, dtype=np.uint64)
    return keys


def _verified(
    vectors: npt.NDArray[np.float32], rows: Integers, first: Integers, second: Integers, least: float
) -> Pairs:
    """Return those of some pairs whose cosine is great enough, in double precision."""
    cosine = np.empty(len(first))
    for start in range(0, len(first), _SECONDS_AT_ONCE):
        some = slice(start, start + _SECONDS_AT_ONCE)
        one, other = (vectors[rows[places[some]]].astype(np.float64) for places in (first, second))
        cosine[some] = (one * other).sum(axis=1)
    is_near = cosine >= least
    return Pairs(first[is_near], second[is_near], cosine[is_near].astype(np.float32))


_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_AT_ONCE: Final = 1 << 18  # signatures or pairs
_ROWS_AT_ONCE: Final = 1 << 8  # pairs of rows of a mapped file; each row may bring 64 KB of it into memory


def near_signatures(signatures: npt.NDArray[np.uint16], rows: Integers, least: float) -> Pairs:
    """Return the pairs of signatures with at least this share of equal values.

    Args:
        signatures: n x 112; may be mapped from a file.
        rows: those that are compared, all different, in the order of preference.
        least: 0 to 1.
    """
    found = Pairs.of([])
    for band in range(BANDS):
        known = _packed(found.first, found.second)
        parts = [found]
        keys = _keys(signatures, band)[rows]
        for first, second in _sharing(keys):
            is_new = np.isin(_packed(first, second), known, invert=True)
            first, second = first[is_new], second[is_new]
            share = _shares(signatures, rows[first], rows[second])
            is_near = share >= np.float32(least)
            parts.append(Pairs(first[is_near], second[is_near], share[is_near]))
        found = Pairs.of(parts)
    return found


def _keys(signatures: npt.NDArray[np.uint16], band: int) -> Words:
    """Return a number for the values of one band of each signature."""
    width = signatures.shape[1] // BANDS
    keys = np.empty(len(signatures), np.uint64)
    for start in range(0, len(signatures), _AT_ONCE):
        values = signatures[start : start + _AT_ONCE, band * width : (band + 1) * width]
        words = np.ascontiguousarray(values).view(np.uint64)
        mixed = np.zeros(len(words), np.uint64)
        for word in words.T:
            mixed = (mixed ^ word) * _MIX
            mixed ^= mixed >> np.uint64(29)
        keys[start : start + _AT_ONCE] = mixed
        _release(signatures)
    return keys


def _release(signatures: npt.NDArray[np.uint16]) -> None:
    """Let the system have the memory that a mapped file takes."""
    mapped = getattr(signatures, "_mmap", None)
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


def _sharing(keys: Words) -> Iterator[tuple[Integers, Integers]]:
    """Yield the pairs of places with equal keys, or hardly any more: the preferred one, and the other.

    Args:
        keys: overwritten.
    """
    # Key and place in one number: sorting numbers takes a fifth of the time of finding their order.
    bits = max(len(keys) - 1, 1).bit_length()
    low = np.uint64((1 << bits) - 1)
    keys &= ~low
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    is_again = np.zeros(len(keys) + 1, bool)
    for start in range(1, len(keys), _AT_ONCE):
        end = min(start + _AT_ONCE, len(keys))
        is_again[start:end] = keys[start:end] ^ keys[start - 1 : end - 1] <= low
    edges = np.flatnonzero(is_again[1:] != is_again[:-1])
    begins, ends = edges[0::2], edges[1::2] + 1
    # Each member beside the first with those before it, or with the leaders of a crowd.
    members = _ranges(begins + 1, ends)
    origins = np.repeat(begins, ends - begins - 1)
    sizes = np.repeat(ends - begins, ends - begins - 1)
    lasts = np.where(sizes > CROWDED, np.minimum(members, origins + LEADERS), members)
    counts = np.cumsum(lasts - origins)
    start = 0
    while start < len(members):
        before = int(counts[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(counts, before + 4 * _AT_ONCE, "right")))
        some = slice(start, end)
        seconds = np.repeat(members[some], (lasts - origins)[some])
        firsts = _ranges(origins[some], lasts[some])
        yield (keys[firsts] & low).astype(np.int64), (keys[seconds] & low).astype(np.int64)
        start = end


def _ranges(begins: Integers, ends: Integers) -> Integers:
    """Return the numbers of all ranges, one after the other."""
    lengths = ends - begins
    shifts = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
    return np.arange(len(shifts)) + shifts


def _shares(signatures: npt.NDArray[np.uint16], first: Integers, second: Integers) -> npt.NDArray[np.float32]:
    """Return the share of equal values of each pair of rows."""
    shares = np.empty(len(first), np.float32)
    for start in range(0, len(first), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        shares[some] = (signatures[first[some]] == signatures[second[some]]).mean(axis=1, dtype=np.float32)
        _release(signatures)
    return shares


@dataclass(frozen=True)
class Clusters:
    """What became of items in their order of preference.

    Attributes:
        survivors: the place of the survivor of each item; its own where it stays.
        measures: distance or similarity of each copy and its survivor, as in `Pairs`; nan of exact copies.
    """

    survivors: Integers
    measures: npt.NDArray[np.float32]

    @classmethod
    def of(cls, firsts: Integers, nodes: Integers, pairs: Pairs) -> Self:
        """Return the clusters of items of which some are equal, and some of the others alike.

        Args:
            firsts: the place of the first of the items that are equal to each; its own where it is that one.
            nodes: places of the items that ``pairs`` are about, in order.
            pairs: by number among ``nodes``.
        """
        of_node, measures = _survivors(len(nodes), pairs)
        by_place = np.arange(len(firsts))
        by_place[nodes] = nodes[of_node]
        measure_at = np.full(len(firsts), np.nan, np.float32)
        measure_at[nodes] = measures
        return cls(by_place[firsts], measure_at[firsts])

    def with_equal(self, contents: npt.NDArray[Any], measure: float) -> Self:
        """Return the clusters where only copies with the content of their survivor count as exact.

        Args:
            contents: a number for the content of each item.
            measure: of a copy whose hash or signature is that of its survivor, but not its content.
        """
        is_equal = contents == contents[self.survivors]
        measures = np.where(is_equal, np.float32(np.nan), np.nan_to_num(self.measures, nan=measure))
        return replace(self, measures=measures.astype(np.float32))

    @property
    def copies(self) -> Integers:
        """Places of the items that do not stay."""
        return np.flatnonzero(self.survivors != np.arange(len(self.survivors)))


def _survivors(count: int, pairs: Pairs) -> tuple[Integers, npt.NDArray[np.float32]]:
    survivors = np.arange(count)
    measures = np.full(count, np.nan, np.float32)
    order = np.lexsort((pairs.first, pairs.second))  # what decides about an item is decided before it
    is_copy = bytearray(count)
    hits: list[int] = []
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE]
        both = zip(pairs.first[some].tolist(), pairs.second[some].tolist(), strict=True)
        for number, (first, second) in enumerate(both, start):
            if not (is_copy[second] or is_copy[first]):
                is_copy[second] = True
                hits.append(number)
    decided = order[np.array(hits, np.int64)]
    survivors[pairs.second[decided]] = pairs.first[decided]
    measures[pairs.second[decided]] = pairs.measure[decided]
    return survivors, measures


def firsts_of_equal(keys: Words) -> Integers:
    """Return the place of the first of the keys that are equal to each.

    Args:
        keys: n x words.
    """
    order = np.argsort(keys[:, 0], kind="stable")
    ordered = keys[order]
    is_again = ordered[1:, 0] == ordered[:-1, 0]
    if not (ordered[1:][is_again] == ordered[:-1][is_again]).all():  # alike at their beginning alone
        order = np.lexsort(keys.T[::-1])
        ordered = keys[order]
        is_again = (ordered[1:] == ordered[:-1]).all(axis=1)
    begins = np.flatnonzero(np.concatenate([[True], ~is_again])[: len(keys)])
    firsts = np.empty(len(keys), np.int64)
    firsts[order] = np.repeat(order[begins], np.diff(begins, append=len(keys)))
    return firsts
