"""Worker process of a `WorkerPool`: how it is started, and its loop until the parent is gone.

Workers are forked where that is safe, else spawned. A fork costs a few milliseconds, a new interpreter with
the imports of a job 0.4 s of CPU. But threads do not survive a fork, what they hold stays locked for ever,
and every open file is inherited. So only commands have their workers forked, as they know what they have
opened, and only while they have no other thread.
"""

import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd, ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

from mm_assets.formats.registry import FreeMemory
from mm_assets.formats.tar.spool import KeptCopies, keep_copies
from mm_assets.model.errors import show_warnings_as_lines
from mm_assets.pool import WORKER_ENVIRONMENT
from mm_assets.storage import StoreTable, use_stores
from mm_assets.storage.errors import error_line

# Sent by a worker when it begins a job. Without it, a worker killed while idle would cost the next job sent
# to it.
TAKEN = b"taken"
# Before the text of a warning, which the parent prints. Pickles begin otherwise.
WARNING = b"warning:"


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


def failure_of(error: BaseException) -> WorkerFailure:
    """Return the failure of a job that raised an exception."""
    return WorkerFailure(type(error).__name__, error_line(error), "".join(traceback.format_exception(error)))


def took_too_long(seconds: float) -> str:
    """Return the message about a job that was ended for its time limit."""
    return f"took longer than {seconds:.10g} seconds (MM_SHARD_TIMEOUT), and was ended"


def answer_of(message: bytes) -> Any:
    """Return what a worker has sent: a result, or a `WorkerFailure`."""
    try:
        return ForkingPickler.loads(message)
    except Exception as error:  # noqa: BLE001  (unpickling runs code of the result's own class)
        return failure_of(error)


@dataclass(eq=False)
class Worker:
    """A started process, its pipe, and the jobs sent to it.

    `stderr` is the read end of its stderr until its own code runs; None for a forked one, which
    runs it at once.
    """

    process: BaseProcess
    pipe: Connection
    stderr: int | None = None
    jobs: deque[Any] = field(default_factory=deque)
    taken_at: float | None = None  # `time.monotonic` when it began the first of `jobs`
    killed_at: float | None = None  # the same, when it was killed because that took too long
    has_started: bool = False

    def startup_output(self) -> str:
        """Return its output before its own code ran (64 KiB at most): a traceback if it got no further."""
        if self.stderr is not None:
            with suppress(BlockingIOError):
                return os.read(self.stderr, 1 << 16).decode(errors="replace").strip()
        return ""

    def seconds(self) -> float:
        """Return for how long it has been at its job."""
        return 0.0 if self.taken_at is None else time.monotonic() - self.taken_at

    def close(self) -> None:
        """Close the pipes to it."""
        self.pipe.close()
        if self.stderr is not None:
            os.close(self.stderr)


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker uses as its parent does.

    Attributes:
        folder: of temporary files; the parent removes it with what killed workers have left there.
        copies: of remote files, for all workers of the pool.
        stores: options of object stores.
    """

    folder: str
    copies: KeptCopies
    stores: StoreTable = field(repr=False)  # with credentials

    def use(self) -> None:
        """Set up this process."""
        tempfile.tempdir = self.folder
        keep_copies(self.copies)
        use_stores(self.stores)


def work(pipe: Connection, setup: WorkerSetup) -> None:
    """Take jobs and send results until the parent is gone: the main function of a worker."""
    setup.use()
    # Ctrl-C goes to the whole process group; only the parent decides what happens to the work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a parent may ignore it, which is inherited
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    sending = threading.Lock()  # a library may warn in a thread of its own

    def send(message: bytes | memoryview) -> None:
        with sending:
            pipe.send_bytes(message)

    show_warnings_as_lines(lambda text: send(WARNING + text.encode(errors="backslashreplace")))
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, inbox), daemon=True).start()
    memory = FreeMemory()
    while True:
        message = inbox.get()
        send(TAKEN)
        try:
            fn, job = ForkingPickler.loads(message)
            answer = ForkingPickler.dumps(fn(job))
        # SystemExit too: a job must not end the worker that has the next job waiting.
        except BaseException as error:  # noqa: BLE001
            answer = ForkingPickler.dumps(failure_of(error))
        send(answer)
        memory.release_to_os()


def _listen(pipe: Connection, inbox: "SimpleQueue[bytes]") -> None:
    """Receive jobs while the main thread works, and end the process as soon as the parent is gone.

    Reading at all times keeps the parent from blocking on a big job while this worker blocks on a big result.
    The pipe closes even when the parent is killed by SIGKILL, so no worker outlives a run. `_exit` is needed
    because the main thread may be deep in C code; at worst it leaves a temporary file, never a published one.
    """
    while True:
        try:
            inbox.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)


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
    worker = fork(setup) if may_fork else None
    if worker is None:
        worker = _spawn(setup)
        _started.add(worker)
    return worker


def fork(setup: WorkerSetup) -> Worker | None:
    """Fork one worker; return None where that would break it. Raises as `start`."""
    if _would_break():
        return None
    worker = _fork(setup)
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
