"""A dataset without files, whose samples are their numbers; and loops over it that stop."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from mm_assets.train import Mixture
from mm_assets.train.loader import EpochDataset
from mm_assets.train.order import EpochOrder, Positions, digest_of


class Numbered(EpochDataset):
    """Samples ``(name, number)`` of shards with these counts."""

    def __init__(
        self, name: str, counts: Sequence[int], rank: int | None = None, world_size: int | None = None
    ) -> None:
        super().__init__(rank, world_size)
        self.name, self.counts = name, list(counts)

    @property
    def epoch_length(self) -> int:
        return sum(self.counts)

    @property
    def order_digest(self) -> str:
        return digest_of("numbered", self.name, self.counts)

    def fetch(self, epoch: int, positions: Positions) -> list[Any]:
        shards, numbers = EpochOrder(self.counts, 3, epoch, 2).locate(positions)
        return list(zip([self.name] * len(shards), shards.tolist(), numbers.tolist(), strict=True))


def alone(rank: int, world_size: int) -> EpochDataset:
    return Numbered("a", [130, 1, 240, 7, 122, 113], rank, world_size)


def mixed(rank: int, world_size: int) -> EpochDataset:
    sources = [Numbered("a", [133, 1, 240]), Numbered("b", [9, 125]), Numbered("c", [35])]
    return Mixture(sources, [0.5, 0.3, 0.2], rank=rank, world_size=world_size)


def whole_epoch(dataset: EpochDataset, epoch: int) -> list[Any]:
    """The samples of an epoch by position."""
    return dataset.fetch(epoch, np.arange(dataset.epoch_length))


def random_stops(random: Random) -> list[int]:
    """Numbers of ranks of several runs, one resumed after the other."""
    return [random.choice([1, 2, 3, 5, 8]) for _ in range(random.randint(3, 5))]
