"""A pool of worker processes in which one dead worker costs exactly one job.

`concurrent.futures.ProcessPoolExecutor` gives up as a whole when one of its processes is killed: jobs of innocent shards are
blamed with it, and no further job is taken. Shards are big and hostile (an image decoder may crash, the kernel may kill for
memory), so here every worker has a pipe of its own: when it closes, the job at its head is the culprit, the job waiting
behind it goes back to the queue, and a new worker takes its place.

No Dagster import: the command line uses the same pool.
"""

import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any, TypeVar

from mm_assets.formats.free_memory import FreeMemory
from mm_assets.warning_lines import show_warnings_as_lines

J = TypeVar("J")
R = TypeVar("R")

# One job in work and one waiting in the worker: it goes on while the parent logs the events of the one before.
AHEAD = 2
# Workers that die one after the other without ever taking a job cannot start at all; further ones would fare alike.
START_ATTEMPTS = 3
# Sent by a worker when it begins a job. Without it a worker killed while idle would cost the next job given to it.
_TAKEN = b"taken"


@dataclass(frozen=True)
class WorkerFailure:
    """Why a job has no result: `type` and `message` of the exception, and its `traceback` (empty for a killed worker)."""

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        """One line that a user can act on; the traceback is kept apart."""
        text = " ".join(self.message.split())
        return f"{self.type}: {text}" if text else self.type


class WorkerStartError(RuntimeError):
    """No worker process gets as far as its first job (an import that fails, no memory): no job is to blame."""


def available_cores() -> int:
    """Cores this process may use; a container's CPU set counts, not the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    jobs: deque[Any] = field(default_factory=deque)
    taken: bool = False  # the head of `jobs` is in work


class WorkerPool:
    """`processes` spawned workers (0: one for every core), started when there is work and kept warm between `map` calls.

    Use as a context manager, or call `close`. Not for several threads at once: one `map` at a time.
    """

    def __init__(self, processes: int = 0) -> None:
        if processes < 0:
            raise ValueError(f"processes must be 0 (all cores) or more, not {processes}")
        self.processes = processes or available_cores()
        self._workers: list[_Worker] = []
        self._mapping = False

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def pids(self) -> list[int]:
        """Process ids of the workers that are up."""
        return [w.process.pid for w in self._workers if w.process.pid is not None]

    def close(self) -> None:
        """End all workers at once; work in progress is lost. The next `map` starts new ones."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()

    def map(self, fn: Callable[[J], R], jobs: Iterable[J]) -> Generator[tuple[J, R | WorkerFailure], None, None]:
        """Run `fn(job)` for every job in the workers; yield `(job, result)` in the order in which they finish.

        `fn` is a function of a module (workers import it), `job` and result are picklable. `jobs` is read only a few ahead of the
        work (at most 3 per worker), so it may be long or lazy. A job that raises, kills its worker or cannot be
        pickled yields a `WorkerFailure` and disturbs no other. An exception in this process, an interrupt, or a consumer
        that stops early kills every worker before it goes on.

        Raises `WorkerStartError` if workers die before they take a job, `RuntimeError` if another `map` is under way.
        """
        if self._mapping:
            raise RuntimeError("this pool is in the middle of another map()")
        self._mapping = True
        try:
            yield from self._run(fn, iter(jobs))
        except BaseException:
            self.close()
            raise
        finally:
            self._mapping = False

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
                    yield job, _failure(error)
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
                    culprit = worker.jobs.popleft() if worker.taken else None
                    queue.extendleft(reversed(worker.jobs))
                    if culprit is not None:
                        yield culprit, WorkerFailure("WorkerDied", died_of)
                        continue
                    starts_left -= 1
                    if not starts_left:
                        raise WorkerStartError(f"worker processes do not start: {died_of}; their messages are on stderr")
                elif answer == _TAKEN:
                    worker.taken, starts_left = True, START_ATTEMPTS
                else:
                    worker.taken = False
                    yield worker.jobs.popleft(), _loads(answer)

    def _free_worker(self, waiting: int) -> _Worker | None:
        """The worker to take the next job, or None if all have enough.

        The second job of a worker is sent only while enough others wait: the last jobs stay here for whoever is free first.
        """
        idle = min(self._workers, key=lambda w: len(w.jobs), default=None)
        if idle is not None and not idle.jobs:
            return idle
        if len(self._workers) < self.processes:
            self._workers.append(_start())
            return self._workers[-1]
        return idle if idle is not None and len(idle.jobs) < AHEAD and waiting >= self.processes else None

    def _wait(self, busy: list[_Worker]) -> list[_Worker]:
        """Workers with an answer, or dead. Asked once a second, too: a forked child of a dead worker may hold its pipe open."""
        of: dict[Any, _Worker] = {w.pipe: w for w in busy}
        while True:
            if ready := connection.wait(list(of), timeout=1.0):
                return [of[pipe] for pipe in ready]
            if dead := [w for w in busy if not w.process.is_alive()]:
                return dead

    def _bury(self, worker: _Worker) -> str:
        """Remove a worker whose pipe has closed; the cause of its death in words."""
        self._workers.remove(worker)
        worker.process.join(timeout=5)  # closing the pipe comes a moment before the exit status
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        code = worker.process.exitcode or 0
        if code >= 0:
            return f"worker ended with exit status {code} in the middle of its job"
        return f"worker killed by signal {-code} ({_signal_name(-code)}){_OOM_HINT if -code == signal.SIGKILL else ''}"


_OOM_HINT = ", as the kernel does when memory runs out"


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in {s.value for s in signal.Signals} else "unknown"


def _failure(error: BaseException) -> WorkerFailure:
    return WorkerFailure(type(error).__name__, str(error), "".join(traceback.format_exception(error)))


def _send(pipe: Connection, message: Any) -> None:
    try:
        pipe.send_bytes(message)
    except (BrokenPipeError, ConnectionResetError):
        # The worker has died. Its end of file is handled where answers are read, so that a result it sent before still counts.
        return


def _receive(worker: _Worker) -> bytes | None:
    """The next message of a worker; None at its end (also in the middle of a message)."""
    try:
        return worker.pipe.recv_bytes() if worker.pipe.poll() else None
    except (EOFError, OSError):
        return None


def _loads(answer: bytes) -> Any:
    try:
        return ForkingPickler.loads(answer)
    except Exception as error:  # noqa: BLE001  (unpickling runs code of the result's own class)
        return _failure(error)


_BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # numpy's: one spins for each core when a process starts, and no worker multiplies matrices


def _start() -> _Worker:
    """Start one worker without importing this program's `__main__` in it.

    Spawn runs the main module again in every child: under a console script of Dagster that imports all of Dagster (0.75 s CPU a
    worker, against 0.05 s). It looks at `__file__` and `__spec__`, which are taken away for the moment of the start.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True, name="mm-assets-worker")
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    has_said = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        process.start()
    finally:
        if not has_said:
            del os.environ[_BLAS_THREADS]
        main.update(hidden)
        theirs.close()  # else our copy would keep the pipe open after the worker's death
    return _Worker(process, ours)


def _work(pipe: Connection) -> None:
    """Main function of a worker: jobs in, results out, until the parent is gone."""
    show_warnings_as_lines()
    # Ctrl-C goes to the whole group; the parent alone decides what becomes of the work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whoever started us may ignore it, and that is inherited
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, inbox), daemon=True).start()
    memory = FreeMemory()
    while True:
        message = inbox.get()
        pipe.send_bytes(_TAKEN)
        try:
            fn, job = ForkingPickler.loads(message)
            answer = ForkingPickler.dumps(fn(job))
        except BaseException as error:  # noqa: BLE001  (SystemExit too: a job must not end the worker under its follower)
            answer = ForkingPickler.dumps(_failure(error))
        pipe.send_bytes(answer)
        memory.give_back()


def _listen(pipe: Connection, inbox: "SimpleQueue[bytes]") -> None:
    """Take in jobs while the main thread works, and end the process as soon as the parent is gone.

    Reading at all times keeps the parent from blocking on a big job while this worker blocks on a big result. The end of file
    comes even when the parent was killed by SIGKILL, so no worker outlives a run; `_exit` because the main thread may be
    deep in C code. What it leaves behind is a temporary file, never a published one.
    """
    while True:
        try:
            inbox.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)
