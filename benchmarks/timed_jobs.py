"""What jobs cost in the workers, told apart from what their start and the orchestrating process cost."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from mm_assets.pool import WorkerFailure
from mm_assets.pool.workers import WorkerPool


@dataclass(frozen=True)
class _Timed:
    """A job function that tells its CPU seconds along with its result; workers unpickle it."""

    fn: Callable[[Any], Any]

    def __call__(self, job: Any) -> tuple[float, Any]:
        started = time.process_time()
        result = self.fn(job)
        return time.process_time() - started, result


@contextmanager
def timed_jobs() -> Iterator[dict[str, list[float]]]:
    """CPU seconds of every job of every worker pool meanwhile, by the name of its function."""
    seconds: dict[str, list[float]] = defaultdict(list)
    plain = WorkerPool.map

    def timing(
        self: WorkerPool, fn: Callable[[Any], Any], jobs: Iterable[Any]
    ) -> Generator[tuple[Any, Any], None, None]:
        with closing(plain(self, _Timed(fn), jobs)) as answers:
            for job, answer in answers:
                if isinstance(answer, WorkerFailure):
                    yield job, answer
                else:
                    seconds[fn.__name__].append(answer[0])
                    yield job, answer[1]

    WorkerPool.map = timing  # type: ignore[assignment]
    try:
        yield seconds
    finally:
        WorkerPool.map = plain  # type: ignore[method-assign]
