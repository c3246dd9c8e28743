"""The worker processes of a run, as a Dagster resource.

No `from __future__ import annotations` here or in any module with a `ResourceDependency` field: Dagster reads the annotations of
the class as objects, and as text they end in a pydantic `ValidationError` when the code location loads.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field, PrivateAttr

from mm_assets.workers import WorkerFailure, WorkerPool

J = TypeVar("J")
R = TypeVar("R")


class Workers(ConfigurableResource[Any]):
    """Worker processes, started with the first job and shared by all assets that run in one process.

    Give the same object to every IO manager *and* list it in the resources (`{"workers": workers, …}`): nested in the IO managers
    only, each of them would get a pool of its own. Under the multiprocess executor every step is a process and has its own pool,
    so use `in_process_executor` and let the workers do the work in parallel.
    """

    processes: int = Field(default=0, ge=0, description="Worker processes of a run; 0 = one for every core.")

    _pool: WorkerPool | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: InitResourceContext) -> Iterator[Any]:
        """Ends the workers with the run, however it ends (also by an interrupt)."""
        try:
            yield self
        finally:
            self.close()

    def map(self, fn: Callable[[J], R], jobs: Iterable[J]) -> Generator[tuple[J, R | WorkerFailure], None, None]:
        """See `mm_assets.workers.WorkerPool.map`."""
        if self._pool is None:
            self._pool = WorkerPool(self.processes)
        return self._pool.map(fn, jobs)

    def close(self) -> None:
        """Kill the workers, if there are any. Outside of a run (in a notebook) the caller of `map` has to."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
