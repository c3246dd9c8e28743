"""Workers that make shards: processes of this machine, or a Ray cluster.

`JobPool` is what both are for those who have jobs; a job without a result is a `WorkerFailure`.
`available_cores` are the cores that a process may use: those of its container, not of the machine.

`WORKER_ENVIRONMENT` has variables for the libraries of workers, which read them when they are loaded.
Commands set them for themselves, before they import numpy: a process with threads cannot fork its workers.
Spawned workers get them at their start. What the user has set stays.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

from mm_assets.model.errors import MmAssetsError

J = TypeVar("J")
R = TypeVar("R")


WORKER_ENVIRONMENT = {
    # By default numpy starts a spinning thread per core, and no worker multiplies matrices.
    "OPENBLAS_NUM_THREADS": "1",
    # OpenCV, which measures pictures, likewise: there is a worker for each core already.
    "OPENCV_FOR_THREADS_NUM": "1",
    # Milliseconds after which Arrow's allocator returns freed memory to the system, which clears it again for
    # the next batch: with 10, its default, up to a third of the CPU; with 1,000 still a tenth on a busy
    # machine. With ten seconds nearly all of that is gone, for 20 to 80 MiB at the peak. Workers without a
    # job return memory, too (`FreeMemory`), which a negative value would forbid.
    "MIMALLOC_PURGE_DELAY": "10000",
}

# As a container sees its own group. Linux's second version of control groups, then the first.
_QUOTA = "cpu.max"
_QUOTA_V1, _PERIOD_V1 = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


def available_cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores of the CPU set, or fewer if the share of CPU time that is allowed is less; at least 1.

    Args:
        groups: where the control group of the container is mounted.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _quota(groups)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(groups: Path) -> float | None:
    """Return how many cores' time may be used; None if there is no limit, or none that can be read."""
    try:
        if (file := groups / _QUOTA).exists():
            quota, period = file.read_text().split()
        else:
            quota, period = ((groups / name).read_text() for name in (_QUOTA_V1, _PERIOD_V1))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None


@dataclass(frozen=True)
class WorkerFailure:
    """The reason why a job has no result.

    Attributes:
        type: class of the exception.
        message: one line that a user can act on.
        traceback: empty for a killed worker.
    """

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return self.message

    def at(self, place: str) -> str:
        """Return the message with the place of the job, unless it names that."""
        return self.message if place in self.message else f"{place}: {self.message}"


class WorkerStartError(MmAssetsError, ChildProcessError):
    """No worker process gets as far as its first job (a failing import, no memory); no job is to blame."""


class MapsJobs(Protocol):
    """What runs jobs elsewhere: a `JobPool`, or the workers of a run."""

    def map(
        self, fn: Callable[[J], R], jobs: Iterable[J]
    ) -> Generator[tuple[J, R | WorkerFailure], None, None]: ...


class JobPool(ABC):
    """Pool that runs jobs, in other processes or on other machines.

    Use as a context manager, or call `close`. Not for several threads at once: one `map` at a time.
    """

    _mapping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End all work at once; what is running is lost. The next `map` starts anew."""

    def map(
        self, fn: Callable[[J], R], jobs: Iterable[J]
    ) -> Generator[tuple[J, R | WorkerFailure], None, None]:
        """Run `fn(job)` for every job.

        A job that raises, kills its worker, takes too long or cannot be pickled yields a `WorkerFailure` and
        disturbs no other. An exception in this process, an interrupt, or a consumer that stops early ends all
        work first.

        Args:
            fn: a function of a module (workers import it).
            jobs: picklable; read only a few ahead of the work (at most 3 per worker), so it may be long or
                lazy. Warnings name a job's ``place``, or its ``key`` as that of a shard, if it has one.

        Yields:
            Job and picklable result, in the order in which they finish.

        Raises:
            WorkerStartError: workers die before they take a job.
            RuntimeError: another `map` is running.
        """
        if self._mapping:
            raise RuntimeError("this pool is in the middle of another map()")
        self._mapping = True
        try:
            yield from self._run(fn, iter(jobs))
        except BaseException:
            self.close()
            raise
        finally:
            self._mapping = False

    @abstractmethod
    def _run(self, fn: Callable[[J], R], jobs: Iterator[J]) -> Iterator[tuple[J, R | WorkerFailure]]:
        """Run the jobs of a `map`."""
