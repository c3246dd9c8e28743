"""Order of an epoch, its division between ranks, and how far they have got.

All are arithmetic on positions: position 17 of epoch 3 is the same sample on any machine, whatever the ranks
and workers. So the progress of a run is a set of positions, and what is left of it can be divided anew.

* `permutation`: numbers in a shuffled order that no release of numpy changes.
* `EpochOrder`: the sample at each position of an epoch.
* `Schedule`: the source at each position of a mixture.
* `Division`: the positions of each rank in each step.
* `Progress`: the positions that are behind us, as state of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from mm_assets.model.errors import DataError, counted

Positions = npt.NDArray[np.int64]
Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint ranges (start, stop) of positions."""

_LARGEST = (1 << 31) - 1  # number in a state: times the samples of an epoch it has 64 bits at most
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def digest_of(*parts: object) -> str:
    """Return the xxh3-128 of some values as JSON, in hex."""
    return xxhash.xxh3_128_hexdigest(json.dumps(parts, sort_keys=True).encode())


def permutation(length: int, *key: object) -> Positions:
    """Return 0 to ``length - 1`` in an order that ``key`` decides.

    Numbers are sorted by SplitMix64 of (xxh3-64 of the key as JSON, plus the number times its constant).
    """
    start = np.uint64(xxhash.xxh3_64_intdigest(json.dumps(key).encode()))
    with np.errstate(over="ignore"):
        mixed = start + np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return np.argsort(mixed, kind="stable").astype(np.int64)


class EpochOrder:
    """The order of one epoch.

    Shards are shuffled. Each ``window`` of them in this order is a group, and the samples of a group are
    shuffled together. So a reader goes on from shard to shard, and has the shards of one group at hand.

    Args:
        counts: samples of each shard.
        seed: None keeps the order in which samples lie.
        epoch: each has another order.
        window: shards in a group.
    """

    def __init__(self, counts: Sequence[int] | Positions, seed: int | None, epoch: int, window: int) -> None:
        self._key = None if seed is None else (seed, epoch)
        total = len(counts)
        self._shards = np.arange(total) if self._key is None else permutation(total, "shards", *self._key)
        self._starts = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64)[self._shards])])
        self._groups = self._starts[[*range(0, total, window), total]]
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)

    def locate(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the shard of each position, and the number of the sample in it."""
        places = positions
        if self._key is not None:
            groups = np.searchsorted(self._groups, positions, "right") - 1
            places = np.empty_like(positions)
            for group in set(groups.tolist()):
                chosen = groups == group
                start = self._groups[group]
                places[chosen] = start + self._shuffled(group)[positions[chosen] - start]
        turns = np.searchsorted(self._starts, places, "right") - 1
        return self._shards[turns], places - self._starts[turns]

    def _shuffle(self, group: int) -> Positions:
        assert self._key is not None
        return permutation(int(self._groups[group + 1] - self._groups[group]), "samples", *self._key, group)


class Schedule:
    """The source of each position of a mixture, and how many samples of it come before.

    In each `WINDOW` of positions a source has a fixed number of places, by largest remainder of its weight,
    spread evenly: any run of positions has each source's share, give or take two.

    Args:
        weights: of the sources, in any unit.

    Raises:
        ValueError: a weight is not positive, or below ``1 / WINDOW`` of their sum.
    """

    WINDOW = 10_000

    def __init__(self, weights: Sequence[float]) -> None:
        shares = np.asarray(weights, np.float64)
        if not len(shares) or not np.isfinite(shares).all() or (shares <= 0).any():
            raise ValueError(f"weights are positive numbers, one for each source, not {list(weights)}")
        exact = shares / shares.sum() * self.WINDOW
        self.counts = np.floor(exact + 1e-9).astype(np.int64)
        rest = np.argsort(self.counts - exact, kind="stable")[: self.WINDOW - int(self.counts.sum())]
        self.counts[rest] += 1
        if not self.counts.all():
            raise ValueError(
                f"a weight is below 1/{self.WINDOW} of all: it would never be drawn: {list(weights)}"
            )
        within = [np.arange(count) for count in self.counts]
        places = np.concatenate(
            [(turn + 0.5) / count for turn, count in zip(within, self.counts, strict=True)]
        )
        order = np.argsort(places, kind="stable")
        self._sources = np.repeat(np.arange(len(shares)), self.counts)[order]
        self._before = np.concatenate(within)[order]

    def locate(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return the source of each position of the endless mixture, and the number of its draw."""
        window, place = np.divmod(positions, self.WINDOW)
        sources = self._sources[place]
        return sources, window * self.counts[sources] + self._before[place]


def united(ranges: Iterable[Sequence[int]]) -> Ranges:
    """Return any ranges sorted, overlapping and neighbouring ones merged."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((int(start), int(stop)) for start, stop in ranges if start < stop):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def _ranges_of(positions: Positions) -> Ranges:
    if not len(positions):
        return ()
    ordered = np.sort(positions)
    breaks = np.flatnonzero(np.diff(ordered) != 1)
    starts = ordered[np.concatenate([[0], breaks + 1])]
    stops = ordered[np.concatenate([breaks, [len(ordered) - 1]])] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


class Division:
    """What is left of an epoch, divided into steps: in each, every rank has one batch.

    A step covers the next ``ranks x batch_size`` positions that are left; ranks take turns in which part of
    it they have. Of a rest that is no whole step, each rank gets an equal part in a smaller last batch, give
    or take one sample. A rest of fewer samples than ranks makes batches of the last step one larger. So each
    sample comes once, and all ranks have equally many batches. ``drop_last`` leaves the rest out instead.

    Args:
        length: positions of the epoch.
        done: those that are behind us.
        batch_size: 0 for single samples: then ranks have equally many, give or take one.
    """

    def __init__(self, length: int, done: Ranges, ranks: int, batch_size: int, drop_last: bool) -> None:
        ends = [0, *(edge for part in done for edge in part), length]
        gaps = [(start, stop) for start, stop in zip(ends[::2], ends[1::2], strict=True) if start < stop]
        self._starts = np.array([start for start, _ in gaps], np.int64)
        self._before = np.cumsum([0, *(stop - start for start, stop in gaps)])
        self.left = int(self._before[-1])
        self._ranks, self._batch = ranks, max(batch_size, 1)
        self._turn = (length - self.left) // (ranks * self._batch)  # so that turns go on after a stop
        whole, rest = divmod(self.left, ranks * self._batch)
        least = ranks if batch_size and whole else 1
        self.steps = whole + (rest >= least and not drop_last)
        used = whole * ranks * self._batch if drop_last else self.left
        self._last = used - (self.steps - 1) * ranks * self._batch if self.steps else 0

    def batch(self, step: int, rank: int) -> Positions:
        """Return the positions of a rank's batch."""
        if step >= self.steps:
            return np.empty(0, np.int64)
        slot = (rank + self._turn + step) % self._ranks
        start = step * self._ranks * self._batch
        if step < self.steps - 1:
            begin, count = start + slot * self._batch, self._batch
        else:
            each, more = divmod(self._last, self._ranks)
            begin, count = start + slot * each + min(slot, more), each + (slot < more)
        numbers = np.arange(begin, begin + count)
        if not count:
            return numbers
        gaps = np.searchsorted(self._before, numbers, "right") - 1
        return self._starts[gaps] + numbers - self._before[gaps]

    def consumed(self, rank: int, steps: int) -> Ranges:
        """Return the positions of a rank's first ``steps`` batches."""
        batches = [self.batch(step, rank) for step in range(min(steps, self.steps))]
        return _ranges_of(np.concatenate(batches)) if batches else ()

    def consumed_by_all(self, steps: int) -> Ranges:
        """Return the positions of the first ``steps`` batches of all ranks."""
        count = self.left if steps >= self.steps else steps * self._ranks * self._batch
        parts = []
        for start, before, after in zip(self._starts, self._before[:-1], self._before[1:], strict=True):
            if before < count:
                parts.append((int(start), int(start + min(count, after) - before)))
        return united(parts)


@dataclass(frozen=True)
class Progress:
    """How far one rank has got: what was done before, and ``steps`` batches of a `Division` since.

    Attributes:
        order: digest of the order, of which epochs differ by their number alone.
        epoch: the current epoch.
        done: by epoch, the positions that were behind us when the division was made.
        ranks, rank, batch_size, drop_last: the division.
        steps: batches that the training loop of this rank has been given.
    """

    order: str
    epoch: int = 0
    done: tuple[tuple[int, Ranges], ...] = ()
    ranks: int = 1
    rank: int = 0
    batch_size: int = 1
    drop_last: bool = False
    steps: int = 0

    def check(self) -> None:
        """Refuse what no dataset gives.

        Raises:
            ValueError: a number is none, or out of its range.
        """
        least = {"epoch": 0, "ranks": 1, "rank": 0, "batch_size": 0, "steps": 0}
        for name, limit in least.items():
            value = getattr(self, name)
            if type(value) is not int or not limit <= value <= _LARGEST:
                raise ValueError(f"{name} is {value!r:.50}")
        if self.rank >= self.ranks:
            raise ValueError(f"rank is {self.rank} of {self.ranks}")
        if not isinstance(self.order, str) or not isinstance(self.drop_last, bool):
            raise ValueError(f"order and drop_last are {self.order!r:.50} and {self.drop_last!r:.50}")
        if any(epoch < 0 or (parts and parts[0][0] < 0) for epoch, parts in self.done):
            raise ValueError("done has a negative number")

    def division(self, length: int) -> Division:
        """Return the division of the current epoch, of ``length`` positions."""
        return Division(
            length, dict(self.done).get(self.epoch, ()), self.ranks, self.batch_size, self.drop_last
        )

    def next_epoch(self, epoch: int) -> Progress:
        """Return the beginning of another epoch; what was done of earlier ones is forgotten."""
        return replace(self, epoch=epoch, steps=0, done=tuple(each for each in self.done if each[0] >= epoch))

    def to_json(self) -> dict[str, Any]:
        """Return a state of plain values."""
        done = {str(epoch): [list(part) for part in parts] for epoch, parts in self.done}
        return {"version": 1, **vars(self), "done": done}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Progress:
        """Return the progress that `to_json` gave.

        Raises:
            DataError: the state is something else.
        """
        try:
            values = dict(state)
            if values.pop("version") != 1:
                raise ValueError("of another version")
            done = tuple((int(epoch), united(parts)) for epoch, parts in sorted(values.pop("done").items()))
            found = cls(done=done, **values)
            found.check()
            return found
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"not the state of a dataset: {error!s:.100}: {state!r:.200}") from error

    @classmethod
    def merged(cls, states: Sequence[Progress], length: int) -> Progress:
        """Return what the states of all ranks say together, without a division.

        One state alone stands for all ranks: they go in step.

        Raises:
            DataError: the states are of different runs, or one of them is missing.
        """
        first = states[0]
        if len(states) == 1:
            division = first.division(length)
            done = dict(first.done)
            done[first.epoch] = united([*done.get(first.epoch, ()), *division.consumed_by_all(first.steps)])
            return cls(first.order, first.epoch, tuple(sorted(done.items())))._settled(length)
        alike = {replace(state, rank=0, steps=0, epoch=0, done=()) for state in states}
        begun = {(state.epoch, state.done) for state in states}
        if len(alike) > 1 or len(begun) > len({epoch for epoch, _ in begun}):
            raise DataError("the states are of different runs: other ranks, batch sizes, data or beginnings")
        present = {state.rank for state in states}
        missing = next((rank for rank in range(first.ranks) if rank not in present), None)
        if missing is not None or len(states) != first.ranks:
            raise DataError(
                f"{counted(len(states), 'state')} of {first.ranks} ranks: "
                + ("a rank has two" if missing is None else f"none of rank {missing}")
            )
        # A rank may have begun the next epoch while others were still in this one.
        earliest = min(states, key=lambda state: state.epoch)
        every: dict[int, list[Sequence[int]]] = {}
        for state in states:
            for epoch, parts in state.done:
                every.setdefault(epoch, []).extend(parts)
            for epoch in range(earliest.epoch, state.epoch + 1):
                at = replace(state, epoch=epoch, done=earliest.done if epoch < state.epoch else state.done)
                division = at.division(length)
                steps = state.steps if epoch == state.epoch else division.steps
                every.setdefault(epoch, []).extend(division.consumed(state.rank, steps))
        done = {epoch: united(parts) for epoch, parts in every.items() if epoch >= earliest.epoch}
        last = earliest.division(length).steps
        if all(state.epoch > earliest.epoch or state.steps >= last for state in states):
            done[earliest.epoch] = ((0, length),)  # what was dropped, too
        return cls(first.order, earliest.epoch, tuple(sorted(done.items())))._settled(length)

    def _settled(self, length: int) -> Progress:
        """Return the next epoch if this one is at its end."""
        found = self
        while dict(found.done).get(found.epoch) == ((0, length),):
            found = found.next_epoch(found.epoch + 1)
        return found
