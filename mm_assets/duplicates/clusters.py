"""Clusters of duplicates, each of one survivor and its copies.

What a cluster is: in the order of preference, each item either stays, or is a copy of the most preferred of
those that stay and that it is itself alike. So each copy is alike its survivor, no two survivors are alike,
and no chain joins what is not: of three of which only neighbours are alike, the one in the middle has two
copies if it is preferred; else it is a copy of one end, and both ends stay.

It depends on nothing but the items: neither on shards nor on the order in which they came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mm_assets.duplicates.pairs import Integers, Pairs, Words

_AT_ONCE = 1 << 20


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
