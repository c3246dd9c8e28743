"""Pool of tasks on a Ray cluster, with the promises of `mm_assets.workers.WorkerPool`."""

import concurrent.futures
import io
import itertools
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from mm_assets.formats.error_lines import error_line
from mm_assets.formats.stores import stores, use_stores
from mm_assets.interleaved.notices import warn_user
from mm_assets.ray_cluster import RayClusterError, connect, disconnect
from mm_assets.ray_folders import SharedFolders, missing_folder
from mm_assets.worker_process import WorkerFailure, answer_of, failure_of, took_too_long

J = TypeVar("J")
R = TypeVar("R")

# Workers that a job may kill before it fails alone, and nodes that may die under it.
MOST_WORKER_DEATHS = 3
MOST_NODE_DEATHS = 10
# What a worker takes with its imports, and some room: a node gets no more tasks than it has memory for.
_TASK_MEMORY = 640 << 20
_AHEAD = 2  # tasks for each core: one at work and one that waits on its node
_POLL_SECONDS = 1.0
_CANCEL_SECONDS = 5.0
_LONGEST_TOLD = 64 << 10  # characters that a task may print
_MOST_TOLD = 1000  # different lines that a pool prints


@dataclass(eq=False)
class _Task:
    """A job on the cluster.

    ``reference`` and ``future`` are those of its present attempt, which ``is_overdue`` when it was ended for
    its time limit.
    """

    number: int
    job: Any
    message: bytes
    worker_deaths: int = 0
    node_deaths: int = 0
    is_overdue: bool = False
    reference: Any = None
    future: "concurrent.futures.Future[Any]" = field(default_factory=concurrent.futures.Future)

    @property
    def attempt(self) -> str:
        return f"{self.number} {self.worker_deaths + self.node_deaths}"


class RayPool:
    """Pool of the tasks of a run, connected to its cluster with the first job.

    Use as a context manager, or call `close`. Not for several threads at once: one `map` at a time.

    Args:
        address: ``auto``, ``host:port`` or ``ray://host:port``.
        processes: most tasks at a time; 0: as many as the cluster has cores, and as many that wait.
        time_limit: seconds after which a job is ended; None: no limit.
        written: local folders that jobs write to: all nodes have to share them.
        read: local folders that jobs read.
    """

    def __init__(
        self,
        address: str = "auto",
        processes: int = 0,
        time_limit: float | None = None,
        written: Sequence[str] = (),
        read: Sequence[str] = (),
    ) -> None:
        self._address = address
        self._processes = processes
        self._time_limit = time_limit
        self._written, self._read = written, read
        self._shared: SharedFolders | None = None  # once connected
        self._work: Any = None
        self._starts: Any = None
        self._cores = 1
        self._asked_at = 0.0  # when the cluster was last asked for its state
        self._told: set[str] = set()
        self._numbers = itertools.count()
        self._mapping = False

    def __enter__(self) -> "RayPool":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster."""
        if self._shared is not None:
            shared, self._shared, self._starts = self._shared, None, None
            shared.close()
            disconnect()

    def map(
        self, fn: Callable[[J], R], jobs: Iterable[J]
    ) -> Generator[tuple[J, R | WorkerFailure], None, None]:
        """Run `fn(job)` for every job on the cluster, as `WorkerPool.map` does in processes.

        A task whose node dies is done again. One that kills its worker three times is a `WorkerFailure`.

        Raises:
            RayClusterError: there is no such cluster, or its nodes do not share a local folder.
            RuntimeError: another `map` is running.
        """
        if self._mapping:
            raise RuntimeError("this pool is in the middle of another map()")
        self._mapping = True
        tasks: set[_Task] = set()
        try:
            if self._shared is None:
                self._connect()
            yield from self._run(fn, iter(jobs), tasks)
        except BaseException:
            self._cancel(tasks)
            self.close()
            raise
        finally:
            self._mapping = False

    def _run(
        self, fn: Callable[[J], R], jobs: Iterator[J], tasks: set[_Task]
    ) -> Iterator[tuple[J, R | WorkerFailure]]:
        finished: SimpleQueue[_Task] = SimpleQueue()
        while True:
            most = self._processes or _AHEAD * self._cores
            for job in itertools.islice(jobs, max(0, most - len(tasks))):
                try:
                    message = bytes(ForkingPickler.dumps((fn, job, stores())))
                except Exception as error:  # noqa: BLE001  (pickling runs code of the job's own class)
                    yield job, failure_of(error)
                    continue
                task = _Task(next(self._numbers), job, message)
                tasks.add(task)
                self._submit(task, finished)
            if not tasks:
                return
            # Not `ray.wait`: an exception of a signal's handler, as Dagster's, does not leave it as it is.
            with suppress(Empty):
                task = finished.get(timeout=_POLL_SECONDS)
                answer = self._answer(task)
                if answer is None:
                    self._submit(task, finished)
                else:
                    tasks.remove(task)
                    yield task.job, answer[0]
            if time.monotonic() - self._asked_at > _POLL_SECONDS:
                self._look_after(tasks)
                self._asked_at = time.monotonic()

    def _submit(self, task: _Task, finished: "SimpleQueue[_Task]") -> None:
        assert self._shared is not None, "`map` has connected"
        try:
            task.reference = self._work.remote(task.message, self._shared.paths, self._starts, task.attempt)
            task.future = task.reference.future()
        except Exception as error:
            raise RayClusterError(f"the Ray cluster takes no task: {error_line(error)}") from error
        task.future.add_done_callback(lambda _: finished.put(task))

    def _answer(self, task: _Task) -> tuple[Any] | None:
        """Return the result of a task; None if it is to be done again.

        Raises:
            RayClusterError: its node does not share a local folder.
        """
        import ray

        try:
            message, told = task.future.result()
        except ray.exceptions.RayTaskError as error:  # it did not get as far as our code
            return (failure_of(error.cause if isinstance(error.cause, BaseException) else error),)
        except (ray.exceptions.RayError, concurrent.futures.CancelledError) as error:
            return self._after_death(task, error)
        if message is None:
            raise RayClusterError(
                f"{told}: on several nodes, shards and storage lie in an object store or a shared file system"
            )
        self._tell(told)
        return (answer_of(message),)

    def _after_death(self, task: _Task, error: BaseException) -> tuple[Any] | None:
        """Return a failure if this was the last attempt of a task."""
        import ray

        if task.is_overdue and self._time_limit is not None:
            return (WorkerFailure("TookTooLong", took_too_long(self._time_limit)),)
        if isinstance(error, ray.exceptions.NodeDiedError):
            task.node_deaths += 1
        else:  # killed, or ended for its node's memory
            task.worker_deaths += 1
        if task.worker_deaths < MOST_WORKER_DEATHS and task.node_deaths < MOST_NODE_DEATHS:
            return None
        deaths = f"workers {task.worker_deaths}, nodes {task.node_deaths}"
        return (WorkerFailure("WorkersDied", f"died in the middle of it: {deaths}: {error_line(error)}"),)

    def _tell(self, text: str) -> None:
        """Print what a task printed, each line once."""
        for line in text.splitlines():
            if line not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(line)
                sys.stderr.write(f"{line}\n")

    def _look_after(self, tasks: Collection[_Task]) -> None:
        """End tasks that take too long, and say so if no node has room for any."""
        import ray

        with suppress(ray.exceptions.RayError, concurrent.futures.TimeoutError):
            alive = [task.attempt for task in tasks]
            running = self._starts.seconds.remote(alive).future().result(timeout=_CANCEL_SECONDS)
            for task in tasks:
                is_late = running.get(task.attempt, 0.0) > (self._time_limit or float("inf"))
                if is_late and not task.is_overdue:
                    task.is_overdue = True
                    ray.cancel(task.reference, force=True)
            self._cores = max(1, int(ray.cluster_resources().get("CPU", 0)))
            if not running and not any(map(_has_room, ray.nodes())):
                needed = f"a core and {_TASK_MEMORY >> 20} MiB of memory"
                warn_user(f"no Ray node has {needed}, which a shard takes: waiting for one")

    def _cancel(self, tasks: Collection[_Task]) -> None:
        """End tasks, and wait a moment until they have ended."""
        if not tasks:
            return
        import ray

        for task in tasks:
            with suppress(Exception):
                ray.cancel(task.reference, force=True)
        concurrent.futures.wait([task.future for task in tasks], timeout=_CANCEL_SECONDS)

    def _connect(self) -> None:
        connect(self._address)
        try:
            self._shared = SharedFolders(self._written, self._read)
        except BaseException:
            disconnect()
            raise
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._work = ray.remote(num_cpus=1, memory=_TASK_MEMORY, max_retries=0)(_work)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        starts = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(_Starts)
        self._starts = starts.remote()
        self._look_after(())


def _has_room(node: Mapping[str, Any]) -> bool:
    resources = node["Resources"]
    return bool(node["Alive"] and resources.get("CPU", 0) >= 1 and resources.get("memory", 0) >= _TASK_MEMORY)


def _work(message: bytes, paths: Mapping[str, str], starts: Any, attempt: str) -> tuple[bytes | None, str]:
    """Do a job in a task.

    Returns:
        The pickled result, or what went wrong, and what was printed to stderr; None, and the folder that this
        node does not see.
    """
    from mm_assets.formats.free_memory import FreeMemory
    from mm_assets.interleaved.notices import show_warnings_as_lines

    if (folder := missing_folder(paths)) is not None:
        import ray

        return None, f"{folder}: not the same folder on Ray node {ray.util.get_node_ip_address()}"
    starts.begin.remote(attempt)
    memory = FreeMemory()
    with redirect_stderr(io.StringIO()) as told:
        show_warnings_as_lines()
        try:
            fn, job, options = ForkingPickler.loads(message)
            use_stores(options)
            answer = ForkingPickler.dumps(fn(job))
        # SystemExit too: a job must not end the worker of others.
        except BaseException as error:  # noqa: BLE001
            answer = ForkingPickler.dumps(failure_of(error))
    starts.end.remote(attempt)
    memory.release_to_os()
    return bytes(answer), told.getvalue()[:_LONGEST_TOLD]


class _Starts:
    """Start times of attempts, by the clock of one node. Ray itself does not report them."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}

    def begin(self, attempt: str) -> None:
        self._began[attempt] = time.monotonic()

    def end(self, attempt: str) -> None:
        self._began.pop(attempt, None)

    def seconds(self, alive: Collection[str]) -> dict[str, float]:
        """Return for how long each of these has been at work; the others are forgotten."""
        self._began = {attempt: self._began[attempt] for attempt in alive if attempt in self._began}
        now = time.monotonic()
        return {attempt: now - began for attempt, began in self._began.items()}
