"""Batches of a dataset: its iteration by epoch and position, and the `Loader` of its batches.

* `EpochDataset`: what all datasets have in common. They stop and resume at any sample, on other numbers of
  ranks and workers.
* `Loader`: batches, read here or by the workers of a PyTorch ``DataLoader``, who hand them over in memory.
"""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import numpy as np
from webdataset.pytorch import IterableDataset

from mm_assets.model.errors import DataError, counted, require
from mm_assets.train.order import Division, Positions, Progress

State = Mapping[str, Any]

_AT_ONCE = 16  # samples that are read together where no batch says how many
_PART = 1 << 30  # bytes of a batch that is handed over
_keys = itertools.count()


class EpochDataset(IterableDataset, ABC):
    """Samples by epoch and position. The position alone decides which sample it is, and who gets it.

    Iterating gives this rank's samples of the current epoch, or what is left of it, and then goes on to the
    next epoch. A DataLoader's workers share them. `loader` gives batches, equally many on each rank.

    Args:
        rank: None takes RANK of the environment, as torchrun sets it, or 0.
        world_size: ranks there are; None takes WORLD_SIZE of the environment, or 1.
        parts: datasets that samples are taken from; their ranks, where given, are those of this one.

    Attributes:
        is_forkable: whether a forked process may read.
        given_rank: the rank, if it was given.
        given_world_size: the number of ranks, if it was given.

    Raises:
        ValueError: there is no such rank, or a part is of another.
    """

    is_forkable = True
    given_rank: int | None
    given_world_size: int | None

    def __init__(self, rank: int | None, world_size: int | None, parts: Sequence[EpochDataset] = ()) -> None:
        super().__init__()
        rank = _agreed("rank", [rank, *(part.given_rank for part in parts)])
        world_size = _agreed("world_size", [world_size, *(part.given_world_size for part in parts)])
        self.given_rank, self.given_world_size = rank, world_size
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.world_size = int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size}: ranks are counted from 0")
        self._state: Progress | None = None

    @property
    @abstractmethod
    def epoch_length(self) -> int:
        """Samples of an epoch on all ranks together."""

    @property
    @abstractmethod
    def order_digest(self) -> str:
        """Digest of all that the order depends on: which samples, seed and settings."""

    @abstractmethod
    def fetch(self, epoch: int, positions: Positions) -> list[Any]:
        """Return the samples at some positions of an epoch."""

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self.progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; nothing happens if it is the current one."""
        if epoch != self.epoch:
            self._state = self.progress.next_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return how far this rank is, as plain values of some 300 bytes.

        Where all ranks go in step, as in data-parallel training, the state of one of them says it for all.
        """
        return self.progress.to_json()

    def load_state_dict(self, states: State | Sequence[State]) -> None:
        """Go on after a state, whatever the numbers of ranks and workers were.

        Args:
            states: of one rank, if all went in step; else of every rank.

        Raises:
            DataError: the state is of other data or of another order, or states of ranks are missing.
        """
        found = [Progress.from_json(one) for one in ([states] if isinstance(states, Mapping) else states)]
        for one in found:
            if one.order != self.order_digest:
                raise DataError(
                    f"{self!r}: the state is of another order ({one.order}, here {self.order_digest}): "
                    "of other data, or of another seed, split, window or mixture"
                )
            if any(parts and parts[-1][1] > self.epoch_length for _, parts in one.done):
                raise DataError(f"{self!r}: not the state of a dataset: done has more than are in an epoch")
        # One state is kept as it is: if the division stays the same, its rank goes on where it was.
        self._state = found[0] if len(found) == 1 else Progress.merged(found, self.epoch_length)

    def loader(
        self,
        batch_size: int,
        workers: int = 0,
        *,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] = list,
        **torch_options: Any,
    ) -> Loader:
        """Return a `Loader` of batches.

        Args:
            batch_size: samples in a batch.
            workers: processes that read; they need torch.
            drop_last: leave out samples at the end of an epoch that are no whole batch of every rank.
            collate: makes a batch of a list of samples, in the workers.
            torch_options: of `torch.utils.data.DataLoader`, such as ``pin_memory``.
        """
        return Loader(self, batch_size, workers, drop_last, collate, torch_options)

    def __len__(self) -> int:
        """Samples of this rank that are left of the current epoch, if they are not taken in batches."""
        progress = self._divided(self.world_size, self.rank, 0, False)
        division = progress.division(self.epoch_length)
        if progress.steps >= division.steps:
            return 0
        return division.steps - 1 - progress.steps + len(division.batch(division.steps - 1, self.rank))

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _worker()
        division = self.begin(self.world_size * workers, worker * self.world_size + self.rank, 0, False)
        progress = self.progress
        for start in range(progress.steps, division.steps, _AT_ONCE):
            steps = range(start, min(start + _AT_ONCE, division.steps))
            positions = np.concatenate([division.batch(step, progress.rank) for step in steps])
            for step, sample in zip(steps, self.fetch(progress.epoch, positions), strict=False):
                self._state = replace(progress, steps=step + 1)
                yield sample
        self._state = progress.next_epoch(progress.epoch + 1)

    def begin(self, ranks: int, rank: int, batch_size: int, drop_last: bool) -> Division:
        """Divide what is left of the epoch, and return the division; the same one goes on where it was.

        Raises:
            DataError: a rank would have no samples.
        """
        self._state = self._divided(ranks, rank, batch_size, drop_last)
        division = self.progress.division(self.epoch_length)
        is_whole = division.left == self.epoch_length
        if division.left < self.world_size or (is_whole and not division.steps):
            raise DataError(
                f"{self!r}: {counted(division.left, 'sample')} "
                f"{'' if is_whole else 'left of the epoch '}for {counted(self.world_size, 'rank')}"
                f"{f' and batches of {batch_size}' if batch_size > 1 else ''}: a rank would have none. "
                f"Start fewer ranks{'' if is_whole else f', or go on with set_epoch({self.epoch + 1})'}"
            )
        return division

    def _divided(self, ranks: int, rank: int, batch_size: int, drop_last: bool) -> Progress:
        wanted = {"ranks": ranks, "rank": rank, "batch_size": batch_size, "drop_last": drop_last}
        if all(getattr(self.progress, name) == value for name, value in wanted.items()):
            return self.progress
        merged = Progress.merged([self.progress], self.epoch_length)
        return replace(merged, ranks=ranks, rank=rank, batch_size=batch_size, drop_last=drop_last)

    def advance(self) -> None:
        """Count a batch that the training loop is given."""
        self._state = replace(self.progress, steps=self.progress.steps + 1)

    @property
    def progress(self) -> Progress:
        """The state."""
        if self._state is None:
            self._state = Progress(self.order_digest, ranks=self.world_size, rank=self.rank, batch_size=0)
        return self._state


def _agreed(name: str, given: Iterable[int | None]) -> int | None:
    found = sorted({value for value in given if value is not None})
    if len(found) > 1:
        raise ValueError(
            f"{name}={' and '.join(map(str, found))}: a dataset and its parts have one, given once"
        )
    return found[0] if found else None


def _worker() -> tuple[int, int]:
    """Return the number of this DataLoader worker, and of all workers."""
    torch = sys.modules.get("torch")  # a worker has it
    info = None if torch is None else torch.utils.data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Loader:
    """Batches of an `EpochDataset`: an iteration is what is left of the current epoch.

    All ranks get equally many. What is left of an epoch behind its last whole step (a batch for each rank) is
    dealt out to all ranks as one smaller batch each, sizes differing by one at most. If it is fewer samples
    than ranks, they make some of the last batches one sample larger. So every sample comes once; with
    ``drop_last`` the rest is left out instead, and all batches have the same size.

    The state counts what the loop was given, not what workers have read ahead. Give it before the next batch
    is taken. A loop that was left goes on where it was, when it is started again.
    """

    def __init__(
        self,
        dataset: EpochDataset,
        batch_size: int,
        workers: int,
        drop_last: bool,
        collate: Callable[[list[Any]], Any],
        torch_options: Mapping[str, Any],
    ) -> None:
        if batch_size < 1 or workers < 0:
            raise ValueError(f"a batch has samples, and workers are counted from 0: {batch_size}, {workers}")
        self.dataset, self._collate = dataset, collate
        self._schedule = _Batches(dataset, batch_size, drop_last)
        self._workers, self._torch_options = workers, torch_options
        self._torch_loader = self._make_torch_loader() if workers else None

    def __len__(self) -> int:
        """Batches that are left of the current epoch."""
        return len(self._schedule)

    def __iter__(self) -> Iterator[Any]:
        self._schedule.begin()
        made = self._torch_loader
        # New workers, and those of a process that was forked, have memory of their own.
        if made is not None and not (made.persistent_workers and self._process == os.getpid()):
            self._torch_loader = made = self._make_torch_loader()
        for batch in map(self._read, self._schedule) if made is None else made:
            self.dataset.advance()
            yield batch
        self.dataset.set_epoch(self.dataset.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return `EpochDataset.state_dict`."""
        self._schedule.begin()
        return self.dataset.state_dict()

    def load_state_dict(self, states: State | Sequence[State]) -> None:
        """Go on after a state, as `EpochDataset.load_state_dict`."""
        self.dataset.load_state_dict(states)

    def _read(self, chosen: list[tuple[int, Positions]]) -> Any:
        return self._collate(self.dataset.fetch(*chosen[0]))

    def _make_torch_loader(self) -> Any:
        require("torch")
        import torch

        self._process = os.getpid()
        options = {
            "batch_sampler": self._schedule,
            "num_workers": self._workers,
            "collate_fn": self._collate,
            "persistent_workers": True,
            "multiprocessing_context": None if self.dataset.is_forkable else "spawn",
            "generator": torch.Generator(),  # else each epoch takes a number of the global one
            **self._torch_options,
        }
        with suppress(OSError, AttributeError):  # without such memory, all goes torch's way
            waiting = options.get("prefetch_factor") or 2  # torch's own number
            options["collate_fn"] = _HandOver(options["collate_fn"], options["num_workers"], waiting)
        return torch.utils.data.DataLoader(_ByPosition(self.dataset), **options)


class _Batches:
    """Epoch and positions of the batches that are left; one element each, as torch wants it of a sampler.

    It knows no loader: workers end as soon as nobody has theirs, then, and not when garbage is collected.
    """

    def __init__(self, dataset: EpochDataset, batch_size: int, drop_last: bool) -> None:
        self._dataset, self._batch_size, self._drop_last = dataset, batch_size, drop_last

    def __iter__(self) -> Iterator[list[tuple[int, Positions]]]:
        division, progress = self.begin(), self._dataset.progress
        for step in range(progress.steps, division.steps):
            yield [(progress.epoch, division.batch(step, progress.rank))]

    def __len__(self) -> int:
        return self.begin().steps - self._dataset.progress.steps

    def begin(self) -> Division:
        dataset = self._dataset
        return dataset.begin(dataset.world_size, dataset.rank, self._batch_size, self._drop_last)


class _ByPosition:
    """What torch takes for a map-style dataset: workers have no order of their own."""

    def __init__(self, dataset: EpochDataset) -> None:
        self._dataset = dataset

    def __getitems__(self, chosen: list[tuple[int, Positions]]) -> list[Any]:
        return self._dataset.fetch(*chosen[0])


class _HandOver:
    """Hands batches from workers to the training loop in memory that both have.

    torch pushes what is no tensor through a pipe, 64 KiB at a time. Here a worker pickles a batch into a file
    in memory, and only its place goes through the pipe. Each batch that may wait has a part of the file; its
    first byte says whether it is in use. A batch that finds none, or is larger, goes torch's way, as tensors
    do. The file has no name: it is gone with its last process, however that ends.

    Args:
        collate: makes a batch of samples.
        workers: processes that write.
        waiting: batches of one worker that may wait.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], workers: int, waiting: int) -> None:
        self._collate, self._waiting = collate, waiting
        self._key = next(_keys)
        file = os.memfd_create("mm-assets-batches")
        os.truncate(file, workers * waiting * _PART)  # takes no memory before it is written
        self._open(file)
        _hand_overs[self._key] = self

    def __call__(self, samples: list[Any]) -> Any:
        batch = self._collate(samples)
        first = _worker()[0] * self._waiting
        for start in range(first * _PART, (first + self._waiting) * _PART, _PART):
            if not self.memory[start]:
                part = _Part(self._key, self.memory, start)
                with suppress(BufferError):
                    ForkingPickler(part, pickle.HIGHEST_PROTOCOL).dump(batch)
                    self.memory[start] = 1
                    return part
        return batch

    def _open(self, file: int) -> None:
        weakref.finalize(self, os.close, file)
        self._file, self.memory = file, mmap.mmap(file, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": DupFd(self._file), "memory": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open(state["_file"].detach())


class _Part:
    """A part of the memory that a pickler writes a batch into. Unpickled itself, it is the batch."""

    def __init__(self, key: int, memory: mmap.mmap, start: int) -> None:
        self._key, self._memory, self._start, self._stop = key, memory, start, start + 1

    def write(self, data: Any) -> None:
        stop = self._stop + len(data)
        if stop > self._start + _PART:
            raise BufferError("the batch is larger than its part")
        self._memory[self._stop : stop] = data
        self._stop = stop

    def __reduce__(self) -> tuple[Any, ...]:
        return _batch_of, (self._key, self._start, self._stop)


def _batch_of(key: int, start: int, stop: int) -> Any:
    """Return a batch that waits in a part, which is free then."""
    shared = _hand_overs[key].memory
    try:
        with memoryview(shared) as memory, memory[start + 1 : stop] as pickled:
            return pickle.loads(pickled)  # noqa: S301 (of our worker)
    finally:
        shared[start] = 0


_hand_overs: weakref.WeakValueDictionary[int, _HandOver] = weakref.WeakValueDictionary()
