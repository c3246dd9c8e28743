"""One worker process of a `WorkerPool`: how it is started, and what it does until its parent is gone."""

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

# Sent by a worker when it begins a job. Without it a worker killed while idle would cost the next job given
# to it.
TAKEN = b"taken"

_STDERR = 2
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # numpy's: one spins for each core when a process starts, and no worker multiplies matrices


@dataclass(frozen=True)
class WorkerFailure:
    """Why a job has no result: `type` of the exception, a `message` of one line that a user can act on, and
    the `traceback` (empty for a killed worker).
    """

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return self.message


def failure_of(error: BaseException) -> WorkerFailure:
    """A job's failure by an exception."""
    return WorkerFailure(type(error).__name__, error_line(error), "".join(traceback.format_exception(error)))


@dataclass(eq=False)
class Worker:
    """A started process, its pipe, and the jobs that it was given; `words` is the read end of its stderr
    until its own code runs.
    """

    process: BaseProcess
    pipe: Connection
    words: int
    jobs: deque[Any] = field(default_factory=deque)
    taken: bool = False  # the head of `jobs` is in work
    has_started: bool = False

    def first_words(self) -> str:
        """What it has said before its own code ran (64 KiB at most): a traceback, if it got no further."""
        with suppress(BlockingIOError):
            return os.read(self.words, 1 << 16).decode(errors="replace").strip()
        return ""

    def close(self) -> None:
        """Close what connects it with us."""
        self.pipe.close()
        os.close(self.words)


def start() -> Worker:
    """Start one worker without importing this program's `__main__` in it. Raises ``OSError`` where the system
    allows none.

    Spawn runs the main module again in every child: under a console script of Dagster that imports all of
    Dagster (0.75 s CPU a worker, against 0.05 s). It looks at `__file__` and `__spec__`, which are taken away
    for the moment of the start.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    has_said = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        with _stderr_piped() as (stderr, words):
            process = context.Process(
                target=_work, args=(theirs, _Descriptor(stderr)), daemon=True, name="mm-assets-worker"
            )
            process.start()
    except OSError:
        ours.close()
        raise
    finally:
        if not has_said:
            del os.environ[_BLAS_THREADS]
        main.update(hidden)
        theirs.close()  # else our copy would keep the pipe open after the worker's death
    return Worker(process, ours, words)


@contextmanager
def _stderr_piped() -> Iterator[tuple[int, int]]:
    """A process started in the block has a pipe as its stderr; yields our stderr for it to take over, and the
    end to read from.

    The pipe blocks nobody: what does not fit is lost.
    """
    words, end = os.pipe()
    try:
        stderr = os.dup(_STDERR)
    except OSError:
        os.close(words)
        os.close(end)
        raise
    try:
        os.set_blocking(words, False)
        os.set_blocking(end, False)
        os.dup2(end, _STDERR)
        yield stderr, words
    except BaseException:
        os.close(words)
        raise
    finally:
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        os.close(end)


class _Descriptor:
    """A descriptor of this process among the arguments of one that is started; there it is a number again."""

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
    # Ctrl-C goes to the whole group; the parent alone decides what becomes of the work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whoever started us may ignore it, and that is inherited
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, inbox), daemon=True).start()
    memory = FreeMemory()
    while True:
        message = inbox.get()
        pipe.send_bytes(TAKEN)
        try:
            fn, job = ForkingPickler.loads(message)
            answer = ForkingPickler.dumps(fn(job))
        except BaseException as error:  # noqa: BLE001  (SystemExit too: a job must not end the worker under its follower)
            answer = ForkingPickler.dumps(failure_of(error))
        pipe.send_bytes(answer)
        memory.release_to_os()


def _listen(pipe: Connection, inbox: "SimpleQueue[bytes]") -> None:
    """Take in jobs while the main thread works, and end the process as soon as the parent is gone.

    Reading at all times keeps the parent from blocking on a big job while this worker blocks on a big result.
    The end of file comes even when the parent was killed by SIGKILL, so no worker outlives a run; `_exit`
    because the main thread may be deep in C code. What it leaves behind is a temporary file, never a
    published one.
    """
    while True:
        try:
            inbox.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)
