"""Ray cluster as a pool of tasks, a `mm_assets.pool.JobPool`.

* `RayPool` runs the jobs of a run as tasks.
* All pools of a process share its one connection to a cluster (`connect`). The package itself travels with
  the run, so that all nodes have the same code. What it imports (pyarrow, pylance, pillow and so on), modules
  of plugins, and credentials of stores are those of the nodes.
* Local folders of a run have to be the same ones on every node: `SharedFolders` marks them, `missing_folder`
  looks for them from a node.
"""

import concurrent.futures
import io
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from mm_assets.model.errors import MissingExtra, MmAssetsError, explained, warn_user
from mm_assets.pool import WORKER_ENVIRONMENT, J, JobPool, R, WorkerFailure
from mm_assets.pool.workers import answer_of, failure_of, took_too_long
from mm_assets.settings import ray_host_and_port
from mm_assets.storage import stores, use_stores
from mm_assets.storage.errors import error_line
from mm_assets.storage.temporary import create_locked, temporary_name

_seen: set[str] = set()  # paths that this process, a worker of a node, has found


class SharedFolders:
    """Paths by which a node knows that a folder is the same for it, until `close`.

    Args:
        written: folders that the run writes to: a hidden file is made in each.
        read: folders of raw shards: nothing is written there, so a node only looks whether they exist.

    Raises:
        OSError: such a file cannot be made.
    """

    def __init__(self, written: Sequence[str], read: Sequence[str]) -> None:
        self._stack = ExitStack()
        self.paths: dict[str, str] = {folder: folder for folder in read if os.path.exists(folder)}
        for folder in written:
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, temporary_name("ray"))
            self._stack.callback(os.close, create_locked(path))
            self._stack.callback(Path(path).unlink, missing_ok=True)
            self.paths[path] = folder

    def close(self) -> None:
        """Remove the hidden files."""
        with suppress(OSError):  # a file server that has gone meanwhile
            self._stack.close()


def missing_folder(paths: Mapping[str, str]) -> str | None:
    """Return the first folder whose path this node does not see; each path is looked up until it is found."""
    for path, folder in paths.items():
        if path not in _seen:
            if not os.path.exists(path):
                return folder
            _seen.add(path)
    return None


_CONNECT_SECONDS = 10

_lock = threading.Lock()
_users = 0  # pools that are connected; none of them owns a connection that somebody else has made


class RayClusterError(MmAssetsError, ConnectionError):
    """The cluster cannot be used; the message is one line."""


def connect(address: str) -> None:
    """Connect this process to a cluster, unless it is connected.

    If the program that we are part of has connected it, its connection is used as it is: nodes then run the
    package that they have installed.

    Args:
        address: ``auto``, ``host:port`` or ``ray://host:port``.

    Raises:
        MissingExtra: Ray is not installed.
        RayClusterError: there is no cluster.
    """
    global _users
    # Else a call after the end of a connection starts a cluster of its own on this machine.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(f"MM_ENGINE=ray: {explained(error)}") from error
    with _lock:
        if not _users and ray.is_initialized():
            return
        if not _users:
            _initialize(address)
        _users += 1


def disconnect() -> None:
    """Undo one `connect`. The last one ends the tasks of this process."""
    global _users
    import ray

    with _lock:
        if _users:
            _users -= 1
            if not _users:
                ray.shutdown()


def _initialize(address: str) -> None:
    import ray

    variables = {name: os.environ.get(name, text) for name, text in WORKER_ENVIRONMENT.items()}
    code = {"py_modules": [str(Path(__file__).parents[1])], "env_vars": variables}
    try:
        _refuse_unreachable(address)
        with _kept_signals():
            # What tasks print comes with their answers. Ray would add long messages on dead workers.
            ray.init(address=address, runtime_env=code, logging_level=logging.WARNING, log_to_driver=False)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RayClusterError(
            f"MM_RAY_ADDRESS={address}: no Ray cluster: {_cause(address, error)}"
        ) from error


def _cause(address: str, error: Exception) -> str:
    if not isinstance(error, ConnectionError) or isinstance(error, ConnectionRefusedError):
        return error_line(error)
    if address == "auto":
        return "none runs on this machine; set MM_RAY_ADDRESS to one that runs elsewhere"
    hint = "it may ask for a token (RAY_AUTH_MODE=token), or have another version of Ray"
    return f"something listens there, and does not take this run: {hint}"


def _refuse_unreachable(address: str) -> None:
    """Raise `OSError` at once if nobody listens at the address; Ray would try for one or two minutes."""
    if found := ray_host_and_port(address):
        socket.create_connection(found, timeout=_CONNECT_SECONDS).close()


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Put back the handler of SIGTERM, which `ray.init` replaces: Dagster ends its runs by it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


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


class RayPool(JobPool):
    """Pool of the tasks of a run, connected to its cluster with the first job.

    A task whose node dies is done again. One that kills its worker three times is a `WorkerFailure`. `map`
    raises `RayClusterError` where there is no such cluster, or its nodes do not share a local folder.

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
        self._tasks: set[_Task] = set()

    def close(self) -> None:
        tasks, self._tasks = self._tasks, set()
        self._cancel(tasks)
        if self._shared is not None:
            shared, self._shared, self._starts = self._shared, None, None
            shared.close()
            disconnect()

    def _run(self, fn: Callable[[J], R], jobs: Iterator[J]) -> Iterator[tuple[J, R | WorkerFailure]]:
        if self._shared is None:
            self._connect()
        tasks = self._tasks
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
            with suppress(Exception):  # of a task that has ended, or whose node is gone
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
    from mm_assets.formats.registry import FreeMemory
    from mm_assets.model.errors import show_warnings_as_lines

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
