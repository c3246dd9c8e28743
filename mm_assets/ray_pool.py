"""Pool of tasks on a Ray cluster, with the promises of `mm_assets.workers.WorkerPool`."""

import io
import itertools
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from mm_assets.formats.error_lines import error_line
from mm_assets.ray_cluster import connect, refuse_unshared
from mm_assets.worker_process import TIME_LIMIT, WorkerFailure, failure_of

J = TypeVar("J")
R = TypeVar("R")

ATTEMPTS = 3
"""How often a job may kill its worker, before it fails alone."""

# What a worker takes with its imports, and some room: a node gets no more tasks than it has memory for.
_TASK_MEMORY = 640 << 20
_AHEAD = 2  # tasks for each core: one at work and one that waits on its node
_POLL_SECONDS = 1.0
_LONGEST_TOLD = 64 << 10  # characters that a task may print


@dataclass(eq=False)
class _Task:
    """A job on the cluster, and how often its worker has died."""

    id: str
    job: Any
    deaths: int = 0
    is_overdue: bool = False


class RayPool:
    """Pool of the tasks of a run, connected to its cluster with the first job.

    Use as a context manager, or call `close`. Not for several threads at once.

    Args:
        address: ``auto``, ``host:port`` or ``ray://host:port``.
        processes: most tasks at a time; 0: as many as the cluster has cores.
        time_limit: seconds after which a job is ended; None: no limit.
        folders: local folders that jobs read and write: all nodes have to see the same ones.
    """

    def __init__(
        self,
        address: str = "auto",
        processes: int = 0,
        time_limit: float | None = None,
        folders: Sequence[str] = (),
    ) -> None:
        self._address = address
        self._processes = processes
        self._time_limit = time_limit
        self._folders = folders
        self._work: Any = None  # the remote function, once connected
        self._starts: Any = None
        self._is_ours = False
        self._told: set[str] = set()

    def __enter__(self) -> "RayPool":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster; running tasks end."""
        if self._is_ours:
            import ray

            ray.shutdown()
        self._work, self._is_ours = None, False

    def map(
        self, fn: Callable[[J], R], jobs: Iterable[J]
    ) -> Generator[tuple[J, R | WorkerFailure], None, None]:
        """Run `fn(job)` for every job on the cluster, as `WorkerPool.map` does in processes.

        A task whose node dies is done again on another one. One that kills its worker three times is a
        `WorkerFailure`.

        Raises:
            RayClusterError: there is no such cluster, or its nodes do not share a local folder.
        """
        if self._work is None:
            self._connect()
        tasks: dict[Any, _Task] = {}
        try:
            yield from self._run(fn, iter(jobs), tasks)
        except BaseException:
            self._cancel(tasks)
            raise

    def _run(
        self, fn: Callable[[J], R], jobs: Iterator[J], tasks: dict[Any, _Task]
    ) -> Iterator[tuple[J, R | WorkerFailure]]:
        import ray

        while True:
            for job in itertools.islice(jobs, max(0, self._most() - len(tasks))):
                task = _Task(uuid.uuid4().hex, job)
                try:
                    tasks[self._submit(fn, task)] = task
                except Exception as error:  # noqa: BLE001  (pickling runs code of the job's own class)
                    yield job, failure_of(error)
            if not tasks:
                return
            done, _ = ray.wait(list(tasks), num_returns=1, timeout=_POLL_SECONDS)
            for reference in done:
                task = tasks.pop(reference)
                answer = self._answer(reference, task)
                if answer is None:
                    tasks[self._submit(fn, task)] = task
                else:
                    yield task.job, answer[0]
            self._end_overdue(tasks)

    def _submit(self, fn: Callable[[J], R], task: _Task) -> Any:
        return self._work.remote(fn, task.job, self._starts, f"{task.id} {task.deaths}")

    def _answer(self, reference: Any, task: _Task) -> tuple[Any] | None:
        """Return the result of a task; None if it is to be done again."""
        import ray

        try:
            answer, told = ray.get(reference)
            self._tell(told)
            return (answer,)
        except ray.exceptions.RayTaskError as error:  # its result cannot be pickled
            return (failure_of(error.as_instanceof_cause()),)
        except (ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError) as error:
            if task.is_overdue:
                return (WorkerFailure("TookTooLong", TIME_LIMIT.format(self._time_limit)),)
            died_of = error_line(error)
        except ray.exceptions.RayError as error:  # a node died, or the kernel's or Ray's memory limit was met
            died_of = error_line(error)
        task.deaths += 1
        if task.deaths < ATTEMPTS:
            return None
        return (WorkerFailure("WorkerDied", f"its worker died {ATTEMPTS} times: {died_of}"),)

    def _tell(self, text: str) -> None:
        """Print what a task printed, each line once."""
        for line in text.splitlines():
            if line not in self._told:
                self._told.add(line)
                sys.stderr.write(f"{line}\n")

    def _end_overdue(self, tasks: dict[Any, _Task]) -> None:
        import ray

        if self._time_limit is None or not tasks:
            return
        running = ray.get(self._starts.seconds.remote())
        for reference, task in tasks.items():
            if running.get(f"{task.id} {task.deaths}", 0.0) > self._time_limit and not task.is_overdue:
                task.is_overdue = True
                ray.cancel(reference, force=True)

    def _most(self) -> int:
        import ray

        return self._processes or _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def _cancel(self, tasks: Iterable[Any]) -> None:
        import ray

        for reference in tasks:
            with suppress(ray.exceptions.RayError, ValueError):
                ray.cancel(reference, force=True)

    def _connect(self) -> None:
        self._is_ours = connect(self._address)
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._work = ray.remote(num_cpus=1, memory=_TASK_MEMORY, max_retries=0)(_work)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._starts = ray.remote(num_cpus=0, scheduling_strategy=here)(_Starts).remote()
        refuse_unshared(self._folders)


def _work(fn: Callable[[Any], Any], job: Any, starts: Any, name: str) -> tuple[Any, str]:
    """Do a job in a task: its result, or what went wrong, and what it printed to stderr."""
    from mm_assets.formats.free_memory import FreeMemory
    from mm_assets.interleaved.notices import show_warnings_as_lines

    starts.begin.remote(name)
    memory = FreeMemory()
    with redirect_stderr(io.StringIO()) as told:
        show_warnings_as_lines()
        try:
            answer = fn(job)
        # SystemExit too: a job must not end the worker of others.
        except BaseException as error:  # noqa: BLE001
            answer = failure_of(error)
    starts.end.remote(name)
    memory.release_to_os()
    return answer, told.getvalue()[:_LONGEST_TOLD]


class _Starts:
    """When tasks began, by name, on one clock. Ray does not tell."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}

    def begin(self, name: str) -> None:
        self._began[name] = time.monotonic()

    def end(self, name: str) -> None:
        self._began.pop(name, None)

    def seconds(self) -> dict[str, float]:
        """Return for how long each has been at work."""
        now = time.monotonic()
        return {name: now - began for name, began in self._began.items()}
