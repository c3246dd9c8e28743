"""Start of worker processes, at the cost of a fork instead of an interpreter with all its imports.

A process of one thread, as most commands are, forks its workers itself. Threads do not survive a fork, and
what they hold stays locked for ever; so a process with threads, as a run of Dagster's is, has a server that
forks for it: a fresh interpreter that has imported what jobs need and runs nothing else.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any
from weakref import WeakSet

from mm_assets.worker_environment import WORKER_ENVIRONMENT
from mm_assets.worker_process import Worker, work

# What most jobs need, of what starts no threads: Lance does, so its jobs import it themselves.
PRELOADED = (
    "mm_assets.worker_process",
    "mm_assets.formats.conversion",
    "mm_assets.formats.parquet",
    "mm_assets.formats.webdataset",
    "mm_assets.filters.registry",
)
_NAME = "mm-assets-worker"
_STDERR = 2
_THREADS = Path("/proc/self/task")  # a folder for each thread of this process; Linux only
# Arrow's allocator frees memory in a thread of its own; its handlers make it whole again after a fork.
_SURVIVORS = frozenset({"jemalloc_bg_thd"})
_UNFORKABLE = frozenset({"lance"})  # it says so, in a warning of its own, also before it has threads

_ENDED = "the process that forks them ended at its start, as the kernel makes it when memory runs out"
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}

_started: WeakSet[Worker] = WeakSet()


def start() -> Worker:
    """Start a worker.

    Raises:
        OSError: the system allows no further process, or the server ends before it has forked.
    """
    worker = _fork() if _may_fork() else _fork_by_server()
    _started.add(worker)
    return worker


def _may_fork() -> bool:
    """Return whether a fork breaks nothing: no thread is left behind, not even one of a library."""
    if not _UNFORKABLE.isdisjoint(sys.modules):
        return False
    try:
        others = [task for task in _THREADS.iterdir() if task.name != str(threading.get_native_id())]
        return all((task / "comm").read_text().strip() in _SURVIVORS for task in others)
    except OSError:
        return False


def _fork() -> Worker:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    # What a fork inherits and must not keep: a pipe ends when the last of its holders has closed it.
    inherited = [ours, *(worker.pipe for worker in _started)]
    process = context.Process(target=_forked, args=(theirs, inherited), daemon=True, name=_NAME)
    with _closing_on_error(ours), theirs:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Worker(process, ours)


def _forked(pipe: Connection, inherited: list[Connection]) -> None:
    for other in inherited:
        other.close()
    work(pipe)


def _fork_by_server() -> Worker:
    """Let the server fork.

    Multiprocessing runs the main module again in every child: under a console script of Dagster that imports
    all of Dagster (0.75 s CPU per worker). It looks at `__file__` and `__spec__`; they are removed meanwhile.
    """
    context = get_context("forkserver")
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    ours, theirs = context.Pipe()
    try:
        with _closing_on_error(ours), theirs:
            _server.ensure_running()
            arguments = (theirs, _Descriptor(_STDERR), dict(os.environ))
            process = context.Process(target=_forked_by_server, args=arguments, daemon=True, name=_NAME)
            process.start()
    except (EOFError, ConnectionError) as error:
        raise OSError(_server.last_line() or _ENDED) from error
    finally:
        main.update(hidden)
    return Worker(process, ours, _server.output)


def _forked_by_server(pipe: Connection, stderr: int, environment: dict[str, str]) -> None:
    os.dup2(stderr, _STDERR)
    os.close(stderr)
    os.environ.clear()  # the server has that of the time when it was started
    os.environ.update(environment)
    work(pipe)


class _Server:
    """The server that multiprocessing has for this process, and the pipe that is its stderr.

    A worker of it writes there until its own code runs. The pipe never blocks: what does not fit is lost.
    """

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None

    def ensure_running(self) -> None:
        """Start the server if it is not running; it ends with this process."""
        if self._ends is None:
            self._ends = os.pipe()
            for end in self._ends:
                os.set_blocking(end, False)
        added = {name: text for name, text in WORKER_ENVIRONMENT.items() if name not in os.environ}
        os.environ.update(added)
        forkserver.set_forkserver_preload(list(PRELOADED))
        stderr = os.dup(_STDERR)
        try:
            os.dup2(self._ends[1], _STDERR)
            forkserver.ensure_running()
        finally:
            os.dup2(stderr, _STDERR)
            os.close(stderr)
            for name in added:
                del os.environ[name]

    def output(self) -> str:
        """Return what it and its workers have written since the last call, 64 KiB at most."""
        if self._ends is None:
            return ""
        with suppress(BlockingIOError):
            return os.read(self._ends[0], 1 << 16).decode(errors="replace").strip()
        return ""

    def last_line(self) -> str:
        """Return the last line of its output: of a traceback that is the error."""
        return (self.output().splitlines() or [""])[-1]


_server = _Server()


class _Descriptor:
    """A file descriptor as an argument of a process to start, where it arrives as a number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _arrived, (DupFd(self._number),)


def _arrived(copy: Any) -> int:
    return int(copy.detach())


@contextmanager
def _closing_on_error(pipe: Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        pipe.close()
        raise
