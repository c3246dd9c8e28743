"""Start of worker processes: forked where that is safe, else spawned.

A fork costs a few milliseconds, a new interpreter with the imports of a job 0.4 s of CPU. But threads do not
survive a fork, what they hold stays locked for ever, and every open file is inherited. So only commands
have their workers forked, as they know what they have opened, and only while they have no other thread.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any
from weakref import WeakSet

from mm_assets.worker_environment import WORKER_ENVIRONMENT
from mm_assets.worker_process import Worker, WorkerSetup, work

_NAME = "mm-assets-worker"
_STDERR = 2
_THREADS = Path("/proc/self/task")  # a folder for each thread of this process; Linux only
# Arrow's allocator frees memory in a thread of its own; its handlers make it whole again after a fork.
_SURVIVORS = frozenset({"jemalloc_bg_thd"})
_UNFORKABLE = frozenset({"lance"})  # it says so, in a warning of its own, also before it has threads
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}

_started: WeakSet[Worker] = WeakSet()


def start(may_fork: bool, setup: WorkerSetup) -> Worker:
    """Start one worker.

    Args:
        may_fork: whether it may inherit what this process has opened.
        setup: what it uses as this process does.

    Raises:
        OSError: the system allows no further process.
    """
    worker = _fork(setup) if may_fork and not _would_break() else _spawn(setup)
    _started.add(worker)
    return worker


def _would_break() -> bool:
    """Return whether a fork would leave a thread behind, also one of a library."""
    if not _UNFORKABLE.isdisjoint(sys.modules):
        return True
    try:
        others = [task for task in _THREADS.iterdir() if task.name != str(threading.get_native_id())]
        return any((task / "comm").read_text().strip() not in _SURVIVORS for task in others)
    except OSError:
        return True


def _fork(setup: WorkerSetup) -> Worker:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    # What a fork inherits and must not keep: a pipe ends when the last of its holders has closed it.
    inherited = [ours, *(worker.pipe for worker in _started)]
    process = context.Process(target=_forked, args=(theirs, inherited, setup), daemon=True, name=_NAME)
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Worker(process, ours)


def _forked(pipe: Connection, inherited: list[Connection], setup: WorkerSetup) -> None:
    for other in inherited:
        other.close()
    work(pipe, setup)


def _spawn(setup: WorkerSetup) -> Worker:
    """Start a worker without importing this program's `__main__` in it.

    Spawn runs the main module again in every child: under a console script of Dagster that imports all of
    Dagster (0.75 s CPU per worker, against 0.05 s). Spawn looks at `__file__` and `__spec__`, which are
    removed during the start.
    """
    context = get_context("spawn")
    parent_pipe, child_pipe = context.Pipe()
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    added = {name: text for name, text in WORKER_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        with _stderr_piped() as (stderr, stderr_end):
            process = context.Process(
                target=_spawned, args=(child_pipe, _Descriptor(stderr), setup), daemon=True, name=_NAME
            )
            process.start()
    except OSError:
        parent_pipe.close()
        raise
    finally:
        for name in added:
            del os.environ[name]
        main.update(hidden)
        child_pipe.close()  # otherwise our copy would keep the pipe open after the worker's death
    return Worker(process, parent_pipe, stderr_end)


def _spawned(pipe: Connection, stderr: int, setup: WorkerSetup) -> None:
    os.dup2(stderr, _STDERR)
    os.close(stderr)
    work(pipe, setup)


@contextmanager
def _stderr_piped() -> Iterator[tuple[int, int]]:
    """Give a process started in the block a pipe as its stderr.

    Yields our stderr for the process to take over, and the read end. The pipe never blocks: output that does
    not fit is lost.
    """
    read_end, write_end = os.pipe()
    try:
        stderr = os.dup(_STDERR)
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    try:
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        os.dup2(write_end, _STDERR)
        yield stderr, read_end
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        os.close(write_end)


class _Descriptor:
    """A file descriptor as an argument of a process to start, where it arrives as a number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _arrived, (DupFd(self._number),)


def _arrived(copy: Any) -> int:
    return int(copy.detach())
