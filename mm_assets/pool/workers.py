"""Pool of worker processes in which a dead worker costs exactly one job.

`concurrent.futures.ProcessPoolExecutor` breaks as a whole when one of its processes is killed: unrelated jobs
are blamed too, and no further job is accepted. Shards are large and may be hostile (an image decoder may
crash, the kernel may kill for memory), so here every worker has its own pipe: when it closes, the job at its
head is the culprit, the job waiting behind it goes back to the queue, and a new worker takes its place.

Workers are forked where that is safe, else spawned. A fork costs a few milliseconds, a new interpreter with
the imports of a job 0.4 s of CPU. But threads do not survive a fork, what they hold stays locked for ever,
and every open file is inherited. So only commands have their workers forked, as they know what they have
opened, and only while they have no other thread. A command that will have threads, of Dagster or of a client
of S3, first forks a process that does nothing but fork its workers (`fork_server`).

No Dagster import: the command line uses the same pool.
"""

from __future__ import annotations

import os
import posixpath
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import connection, forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd, ForkingPickler
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn
from weakref import WeakSet

from mm_assets.formats.registry import FreeMemory
from mm_assets.formats.tar.spool import KeptCopies, keep_copies
from mm_assets.model.errors import show_warnings_as_lines, warning_line, write_line
from mm_assets.pool import WORKER_ENVIRONMENT, J, JobPool, R, WorkerFailure, WorkerStartError, available_cores
from mm_assets.storage import StoreTable, stores, use_stores
from mm_assets.storage.errors import error_line
from mm_assets.storage.temporary import TemporaryFolder

# One job running and one waiting in the worker, so that it continues while the parent logs the events of the
# finished one.
AHEAD = 2
# If this many workers in a row die before their first job, workers cannot start at all.
START_ATTEMPTS = 3
# A process that waits for a file server in the kernel cannot be killed: after this time it is left behind.
_STUCK_SECONDS = 10.0
# A worker without a job returns memory after this time: the next job would have the system clear it again.
_IDLE_SECONDS = 1.0


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
                self._workers.append(start(self._may_fork, self._setup()))
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


# Sent by a worker when it begins a job. Without it, a worker killed while idle would cost the next job sent
# to it.
TAKEN = b"taken"
# Before the text of a warning, which the parent prints. Pickles begin otherwise.
WARNING = b"warning:"


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
        try:
            message = inbox.get(timeout=_IDLE_SECONDS)
        except Empty:
            memory.release_to_os()
            message = inbox.get()
        send(TAKEN)
        try:
            fn, job = ForkingPickler.loads(message)
            answer = ForkingPickler.dumps(fn(job))
        # SystemExit too: a job must not end the worker that has the next job waiting.
        except BaseException as error:  # noqa: BLE001
            answer = ForkingPickler.dumps(failure_of(error))
        send(answer)
        memory.release_surplus()


def _listen(pipe: Connection, inbox: SimpleQueue[bytes]) -> None:
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
    if may_fork and not _would_break():
        worker = _fork(setup)
    else:
        spawned = get_context("spawn")
        try:
            # That of somebody else, as of a Dagster executor, may have another environment.
            is_ours = _server._forkserver_pid in _forked_servers
            worker = _spawn(setup, get_context("forkserver") if is_ours else spawned)
        except (EOFError, ConnectionError):  # the server dies just now
            worker = _spawn(setup, spawned)
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


_server: Any = forkserver._forkserver  # type: ignore[attr-defined]  # of this process; multiprocessing has one
_forked_servers: set[int] = set()  # those of `fork_server`


@contextmanager
def fork_server(modules: Sequence[str] = ()) -> Iterator[None]:
    """Have all workers of this block forked from a process that is forked now, where that is safe.

    They have what is imported now, and nothing that is opened or started later. multiprocessing starts its
    server in a new interpreter; once there is one, it is asked for each process. If it dies, the jobs that
    run fail, and another is started as multiprocessing does.

    Args:
        modules: what the server imports, for all workers, before it forks the first.
    """
    is_known = sys.version_info < (3, 14)  # whose server takes another way of starting it
    if not is_known or _would_break() or _server._forkserver_pid is not None:
        yield
        return
    folder = TemporaryFolder()
    try:
        with suppress(OSError):  # no further process, or a path too long for a socket: workers are spawned
            _start_server(f"{folder.path}/fork", modules)
        yield
    finally:
        if _server._forkserver_pid is not None and _server._forkserver_pid in _forked_servers:
            with suppress(ProcessLookupError):
                os.kill(_server._forkserver_pid, signal.SIGKILL)  # a stuck worker would keep it
            _server._stop()
        _forked_servers.clear()
        folder.remove()


def _start_server(address: str, modules: Sequence[str]) -> None:
    """Do what `ForkServer.ensure_running` does, without a new interpreter."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else each worker would print it again
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)  # in a folder that nobody else may enter
        listener.listen()
        ends, alive = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            process = os.fork()
            if process == 0:
                os.close(alive)
                _serve_forks(listener.detach(), ends, modules)
        except OSError:
            os.close(alive)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(ends)
    _server._forkserver_address, _server._forkserver_alive_fd = address, alive
    _server._forkserver_pid = process
    _forked_servers.add(process)


def _serve_forks(listener: int, ends: int, modules: Sequence[str]) -> NoReturn:
    """Fork workers until nobody is left who has the other end of the pipe."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
        connection.wait([listener, ends])
        forkserver.main(listener, ends, modules)
    finally:
        os._exit(0)


def _forked(pipe: Connection, inherited: list[Connection], setup: WorkerSetup) -> None:
    for other in inherited:
        other.close()
    work(pipe, setup)


def _spawn(setup: WorkerSetup, context: SpawnContext | ForkServerContext) -> Worker:
    """Start a worker without importing this program's `__main__` in it.

    Spawn runs the main module again in every child: under a console script of Dagster that imports all of
    Dagster (0.75 s CPU per worker, against 0.05 s). Spawn looks at `__file__` and `__spec__`, which are
    removed during the start.
    """
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
    except (OSError, EOFError):
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
