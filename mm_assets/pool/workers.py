"""Pool of worker processes in which a dead worker costs exactly one job.

`concurrent.futures.ProcessPoolExecutor` breaks as a whole when one of its processes is killed: unrelated jobs
are blamed too, and no further job is accepted. Shards are large and may be hostile (an image decoder may
crash, the kernel may kill for memory), so here every worker has its own pipe: when it closes, the job at its
head is the culprit, the job waiting behind it goes back to the queue, and a new worker takes its place.

`available_cores` are the cores that a process may use: those of its container, not of the machine.

No Dagster import: the command line uses the same pool.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from mm_assets.formats.tar.spool import KeptCopies
from mm_assets.model.errors import MmAssetsError, warning_line, write_line
from mm_assets.pool.worker_process import (
    TAKEN,
    WARNING,
    Worker,
    WorkerFailure,
    WorkerSetup,
    answer_of,
    failure_of,
    fork,
    took_too_long,
)
from mm_assets.pool.worker_process import start as _start
from mm_assets.storage import stores
from mm_assets.storage.errors import error_line
from mm_assets.storage.temporary import TemporaryFolder

__all__ = ["WorkerFailure", "WorkerPool", "WorkerStartError"]


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


J = TypeVar("J")
R = TypeVar("R")

# One job running and one waiting in the worker, so that it continues while the parent logs the events of the
# finished one.
AHEAD = 2
# If this many workers in a row die before their first job, workers cannot start at all.
START_ATTEMPTS = 3
# A process that waits for a file server in the kernel cannot be killed: after this time it is left behind.
_STUCK_SECONDS = 10.0


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


class WorkerPool(JobPool):
    """Pool of worker processes, started when there is work and kept between `map` calls.

    Args:
        processes: number of workers; 0: one per core.
        may_fork: whether workers may be forked, which is quicker; they inherit what this process has opened.
        time_limit: seconds after which a job's worker is killed, as if it had died; None: no limit.

    Raises:
        ValueError: ``processes`` is negative.
    """

    def __init__(self, processes: int = 0, may_fork: bool = False, time_limit: float | None = None) -> None:
        if processes < 0:
            raise ValueError(f"processes must be 0 (all cores) or more, not {processes}")
        self.processes = processes or available_cores()
        self._workers: list[Worker] = []
        self._may_fork = may_fork
        self._time_limit = time_limit
        self._told: set[str] = set()  # warnings of workers
        self._folder: TemporaryFolder | None = None

    def pids(self) -> list[int]:
        """Return the process ids of running workers."""
        return [w.process.pid for w in self._workers if w.process.pid is not None]

    def close(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join(timeout=_STUCK_SECONDS)
            worker.close()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _run(self, fn: Callable[[J], R], jobs: Iterator[J]) -> Iterator[tuple[J, R | WorkerFailure]]:
        queue: deque[J] = deque()
        starts_left = START_ATTEMPTS
        while True:
            queue.extend(islice(jobs, max(0, self.processes - len(queue))))
            if queue and (worker := self._free_worker(len(queue))) is not None:
                job = queue.popleft()
                try:
                    message = ForkingPickler.dumps((fn, job))
                except Exception as error:  # noqa: BLE001  (pickling runs code of the job's own class)
                    yield job, failure_of(error)
                    continue
                worker.jobs.append(job)
                _send(worker.pipe, message)
                continue
            busy = [w for w in self._workers if w.jobs]
            if not busy:
                return
            for worker in self._wait(busy):
                answer = _receive(worker)
                if answer is None:
                    died_of = self._bury(worker)
                    culprit = None if worker.taken_at is None else worker.jobs.popleft()
                    queue.extendleft(reversed(worker.jobs))
                    if culprit is not None:
                        kind = "WorkerDied" if worker.killed_at is None else "TookTooLong"
                        yield culprit, WorkerFailure(kind, died_of)
                        continue
                    if worker.killed_at is not None:  # the result came at the last moment
                        continue
                    starts_left -= 1
                    if not starts_left:
                        raise WorkerStartError(f"worker processes do not start: {died_of}")
                elif answer == TAKEN:
                    starts_left = START_ATTEMPTS
                    worker.taken_at = time.monotonic() if worker.killed_at is None else None
                    if not worker.has_started and (startup_output := worker.startup_output()):
                        sys.stderr.write(f"{startup_output}\n")
                    worker.has_started = True
                elif answer.startswith(WARNING):
                    self._warn(worker, answer.removeprefix(WARNING).decode())
                else:
                    worker.taken_at = None
                    yield worker.jobs.popleft(), answer_of(answer)

    def _warn(self, worker: Worker, text: str) -> None:
        """Print what a worker warns of, once for all workers, with the shard at which it is."""
        if text in self._told:
            return
        self._told.add(text)
        job = worker.jobs[0] if worker.jobs else None
        key = getattr(job, "key", None)
        place = getattr(job, "place", "") if key is None else f"shard {key!r}"
        name = re.escape(posixpath.basename(place if key is None else key))
        is_named = not place or re.search(rf"(?<!\w){name}(?!\w)", text)
        write_line(warning_line(text if is_named else f"{place}: {text}"))

    def _free_worker(self, waiting: int) -> Worker | None:
        """Return the worker to take the next job, or None if all have enough.

        A second job is sent to a worker only while enough others wait: the last jobs stay here for the first
        free worker.
        """
        idle = min(self._workers, key=lambda w: len(w.jobs), default=None)
        if idle is not None and not idle.jobs:
            return idle
        if len(self._workers) < self.processes:
            try:
                self._workers.append(_start(self._may_fork, self._setup()))
            except OSError as error:
                if not self._workers:
                    raise WorkerStartError(f"worker processes do not start: {error_line(error)}") from error
                self.processes = len(self._workers)  # the system allows no more of them
            else:
                return self._workers[-1]
        return idle if idle is not None and len(idle.jobs) < AHEAD and waiting >= self.processes else None

    def _setup(self) -> WorkerSetup:
        if self._folder is None:
            self._folder = TemporaryFolder()
            self._copies = KeptCopies.beside(self._folder.path)
        return WorkerSetup(self._folder.path, self._copies, stores())

    def _wait(self, busy: list[Worker]) -> list[Worker]:
        """Return workers with an answer, or dead ones.

        Also checked once a second, because a forked child of a dead worker may hold its pipe open. Workers
        whose job takes too long are killed.
        """
        by_pipe: dict[Any, Worker] = {w.pipe: w for w in busy}
        while True:
            ready = connection.wait(list(by_pipe), timeout=1.0)
            self._kill_overdue(worker for pipe, worker in by_pipe.items() if pipe not in ready)
            if ready:
                return [by_pipe[pipe] for pipe in ready]
            if dead := [w for w in busy if not w.process.is_alive() or _is_stuck(w)]:
                return dead

    def _kill_overdue(self, busy: Iterable[Worker]) -> None:
        for worker in busy:
            if self._time_limit is not None and worker.seconds() > self._time_limit:
                worker.killed_at = worker.killed_at or time.monotonic()
                worker.process.kill()

    def _bury(self, worker: Worker) -> str:
        """Remove a worker whose pipe has closed, and return the cause of its death."""
        self._workers.remove(worker)
        worker.process.join(timeout=5)  # closing the pipe comes a moment before the exit status
        worker.process.kill()
        worker.process.join(timeout=_STUCK_SECONDS)
        startup_output = "" if worker.has_started else worker.startup_output()
        worker.close()
        code = worker.process.exitcode or 0
        if worker.killed_at is not None and self._time_limit is not None:
            return took_too_long(self._time_limit)
        if code >= 0 and startup_output:
            return startup_output.splitlines()[-1]  # the last line of a traceback is the error
        if code >= 0:
            during = " in the middle of its job" if worker.has_started else ""
            return f"worker ended with exit status {code}{during}"
        hint = _OOM_HINT if -code == signal.SIGKILL else ""
        return f"worker killed by signal {-code} ({_signal_name(-code)}){hint}"


class _EarlyPool(WorkerPool):
    """Workers that are forked before a command imports what they have no use for, for all of its runs.

    A run that closes the pool leaves them, unless it is interrupted; the end of the ``with`` block ends them.
    """

    def start(self) -> bool:
        """Fork all workers, if that is safe now; return whether it is."""
        with suppress(OSError):  # told when there is work for them
            while len(self._workers) < self.processes and (worker := fork(self._setup())) is not None:
                self._workers.append(worker)
        return bool(self._workers)

    def is_for(self, processes: int, time_limit: float | None) -> bool:
        return (self.processes, self._time_limit) == (processes or available_cores(), time_limit)

    def close(self) -> None:
        if self._mapping:
            super().close()

    def __exit__(self, *exc_info: object) -> None:
        super().close()


_early: _EarlyPool | None = None


@contextmanager
def early_workers(processes: int, time_limit: float | None = None) -> Iterator[None]:
    """Fork the workers of the `early_pool` within this block, if that is safe."""
    global _early
    with _EarlyPool(processes, time_limit=time_limit) as pool:
        _early = pool if pool.start() else None
        try:
            yield
        finally:
            _early = None


def early_pool(processes: int, time_limit: float | None) -> WorkerPool | None:
    """Return the pool of `early_workers`, if there is one like this."""
    return _early if _early is not None and _early.is_for(processes, time_limit) else None


_OOM_HINT = ", as the kernel does when memory runs out: fewer workers (MM_WORKERS, --workers) need less"


def _is_stuck(worker: Worker) -> bool:
    return worker.killed_at is not None and time.monotonic() - worker.killed_at > _STUCK_SECONDS


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in {s.value for s in signal.Signals} else "unknown"


def _send(pipe: Connection, message: Any) -> None:
    try:
        pipe.send_bytes(message)
    except (BrokenPipeError, ConnectionResetError):
        # The worker has died. This is handled where answers are read, so that a result it sent before still
        # counts.
        return


def _receive(worker: Worker) -> bytes | None:
    """Return the next message of a worker; None at its end, also in the middle of a message."""
    try:
        return worker.pipe.recv_bytes() if worker.pipe.poll() else None
    except (EOFError, OSError):
        return None
