"""One worker process of a `WorkerPool`: its start, and its loop until the parent is gone."""

import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd, ForkingPickler
from queue import SimpleQueue
from typing import Any

from mm_assets.formats.error_lines import error_line
from mm_assets.formats.free_memory import FreeMemory
from mm_assets.interleaved.notices import show_warnings_as_lines

# Sent by a worker when it begins a job. Without it, a worker killed while idle would cost the next job sent
# to it.
TAKEN = b"taken"

_STDERR = 2
# By default numpy starts a spinning thread per core in each process, and no worker multiplies matrices.
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


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


def failure_of(error: BaseException) -> WorkerFailure:
    """Return the failure of a job that raised an exception."""
    return WorkerFailure(type(error).__name__, error_line(error), "".join(traceback.format_exception(error)))


@dataclass(eq=False)
class Worker:
    """A started process, its pipe, and the jobs sent to it.

    `stderr` is the read end of its stderr until its own code runs.
    """

    process: BaseProcess
    pipe: Connection
    stderr: int
    jobs: deque[Any] = field(default_factory=deque)
    taken: bool = False  # the first of `jobs` is running
    has_started: bool = False

    def startup_output(self) -> str:
        """Return its output before its own code ran (64 KiB at most): a traceback if it got no further."""
        with suppress(BlockingIOError):
            return os.read(self.stderr, 1 << 16).decode(errors="replace").strip()
        return ""

    def close(self) -> None:
        """Close the pipes to it."""
        self.pipe.close()
        os.close(self.stderr)


def start() -> Worker:
    """Start one worker without importing this program's `__main__` in it.

    Spawn runs the main module again in every child: under a console script of Dagster that imports all of
    Dagster (0.75 s CPU per worker, against 0.05 s). Spawn looks at `__file__` and `__spec__`, which are
    removed during the start.

    Raises:
        OSError: the system allows no further process.
    """
    context = get_context("spawn")
    parent_pipe, child_pipe = context.Pipe()
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    is_set = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        with _stderr_piped() as (stderr, stderr_end):
            process = context.Process(
                target=_work, args=(child_pipe, _Descriptor(stderr)), daemon=True, name="mm-assets-worker"
            )
            process.start()
    except OSError:
        parent_pipe.close()
        raise
    finally:
        if not is_set:
            del os.environ[_BLAS_THREADS]
        main.update(hidden)
        child_pipe.close()  # otherwise our copy would keep the pipe open after the worker's death
    return Worker(process, parent_pipe, stderr_end)


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


def _work(pipe: Connection, stderr: int) -> None:
    """Main function of a worker: jobs in, results out, until the parent is gone."""
    os.dup2(stderr, _STDERR)
    os.close(stderr)
    show_warnings_as_lines()
    # Ctrl-C goes to the whole process group; only the parent decides what happens to the work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a parent may ignore it, which is inherited
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, inbox), daemon=True).start()
    memory = FreeMemory()
    while True:
        message = inbox.get()
        pipe.send_bytes(TAKEN)
        try:
            fn, job = ForkingPickler.loads(message)
            answer = ForkingPickler.dumps(fn(job))
        # SystemExit too: a job must not end the worker that has the next job waiting.
        except BaseException as error:  # noqa: BLE001
            answer = ForkingPickler.dumps(failure_of(error))
        pipe.send_bytes(answer)
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
