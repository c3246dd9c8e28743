"""One worker process of a `WorkerPool`, and its loop until the parent is gone."""

import os
import signal
import tempfile
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any

from mm_assets.formats.downloads import KeptCopies, keep_copies
from mm_assets.formats.error_lines import error_line
from mm_assets.formats.free_memory import FreeMemory
from mm_assets.formats.stores import StoreTable, use_stores
from mm_assets.interleaved.notices import show_warnings_as_lines

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
