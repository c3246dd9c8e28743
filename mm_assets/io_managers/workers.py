"""Worker processes of a run, or tasks on a Ray cluster, as a Dagster resource.

No `from __future__ import annotations` here or in any module with a `ResourceDependency` field: Dagster reads
the annotations of the class as objects, and as text they end in a pydantic `ValidationError` when the code
location loads.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field, PrivateAttr

from mm_assets.formats.raw_shards import RawLocations
from mm_assets.formats.storage import is_remote
from mm_assets.io_managers.lost_runs import watched
from mm_assets.ray_pool import RayPool
from mm_assets.workers import WorkerFailure, WorkerPool

J = TypeVar("J")
R = TypeVar("R")

# Dagster copies a nested resource for every IO manager that has it. The copies of one run share a pool.
_Key = tuple[str, int, str, str, float | None]
_Pool = WorkerPool | RayPool
_pools: dict[_Key, _Pool] = {}
_users: Counter[_Key] = Counter()


class Workers(ConfigurableResource[Any]):
    """Worker processes, started with the first job and shared by all assets that run in one process.

    Give them to every IO manager. Under the multiprocess executor each step is a process and starts workers
    of its own; use `in_process_executor` and let the workers do the work in parallel.
    """

    processes: int = Field(default=0, ge=0, description="Worker processes of a run; 0 = one for every core.")
    engine: str = Field(
        default="local",
        pattern="^(local|ray)$",
        description="local: processes of the run; ray: tasks on a cluster.",
    )
    ray_address: str = Field(default="auto", description="auto, host:port or ray://host:port.")
    raw_shards: str = Field(default="", description="Locations of raw shards, which Ray nodes have to see.")
    storage: str = Field(default="", description="Output root, which Ray nodes have to share if it is local.")
    shard_timeout: float | None = Field(
        default=None, gt=0, description="Seconds that a worker may take for one shard in one asset."
    )

    _pool: _Pool | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: InitResourceContext) -> Iterator[Any]:
        """Set up the workers, and end them with the run, however it ends (also by an interrupt)."""
        run_id = context.run.run_id if context.run else ""
        key = (run_id, self.processes, self.engine, self.ray_address, self.shard_timeout)
        if key not in _pools:
            _pools[key] = self._new_pool()
        self._pool = _pools[key]
        _users[key] += 1
        try:
            with _watched_run(context) if _users[key] == 1 else nullcontext():
                yield self
        finally:
            _users[key] -= 1
            if not _users[key]:
                del _users[key]
                _pools.pop(key).close()

    def _new_pool(self) -> _Pool:
        if self.engine == "ray":
            written = [self.storage] if self.storage and not is_remote(self.storage) else []
            read = RawLocations(self.raw_shards).local_folders()
            return RayPool(self.ray_address, self.processes, self.shard_timeout, written, read)
        return WorkerPool(self.processes, time_limit=self.shard_timeout)

    def map(
        self, fn: Callable[[J], R], jobs: Iterable[J]
    ) -> Generator[tuple[J, R | WorkerFailure], None, None]:
        """Run a function on jobs; see `WorkerPool.map` and `RayPool.map`.

        Raises:
            RuntimeError: outside of a run or of `build_resources`; use a `WorkerPool` itself there.
        """
        if self._pool is None:
            raise RuntimeError("the workers have not been set up by a run or build_resources()")
        return self._pool.map(fn, jobs)


def _watched_run(context: InitResourceContext) -> AbstractContextManager[None]:
    if context.instance is None or context.run is None:
        return nullcontext()
    return watched(context.instance, context.run)
