"""The few best of a stream of things, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Generic, TypeVar

import numpy as np

from mm_assets.preview.bounds import Numbers

T = TypeVar("T")
_SEED = 0  # the same page for the same scores
_ORDER = itemgetter(0, 1)


class Nearest(Generic[T]):
    """The things of the least distances; those of the same distance are drawn by lot.

    Args:
        limit: how many are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._draw = np.random.default_rng(_SEED)
        self._kept: list[tuple[float, float, T]] = []
        self._worst = (np.inf, np.inf)

    def add(self, distances: Numbers, thing: Callable[[int], T]) -> None:
        """Look at more.

        Args:
            distances: of each; what is infinitely far is not kept.
            thing: returns one by its index among them.
        """
        lots = self._draw.random(len(distances))
        worst, lot = self._worst
        is_near = np.isfinite(distances) & ((distances < worst) | ((distances == worst) & (lots < lot)))
        near = np.flatnonzero(is_near)
        near = near[np.lexsort((lots[near], distances[near]))][: self._limit]
        self._kept += [(float(distances[i]), float(lots[i]), thing(i)) for i in near.tolist()]
        if len(self._kept) >= 2 * self._limit:
            self._cut()

    def merge(self, other: Nearest[T]) -> None:
        """Add what another one keeps."""
        self._kept += other._kept
        self._cut()

    @property
    def things(self) -> list[T]:
        """What is kept, the nearest first."""
        self._cut()
        return [thing for _, _, thing in self._kept]

    def _cut(self) -> None:
        self._kept.sort(key=_ORDER)
        del self._kept[self._limit :]
        if len(self._kept) == self._limit:
            self._worst = _ORDER(self._kept[-1])
