"""Worker processes that runs and commands of many tests share: to start some for each would take most of the
time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mm_assets.pool.workers import WorkerPool


class _WarmPool(WorkerPool):
    """A pool whose workers outlive its users; an interrupted `map` ends them as ever."""

    def close(self) -> None:
        if self._mapping:
            super().close()


_Pools = dict[tuple[int, float | None, str], _WarmPool]
_pools: _Pools = {}


@contextmanager
def warm_workers(*, apart: bool = False) -> Iterator[None]:
    """Give whoever asks for a pool in this process the same workers, in all such blocks of a session.

    Workers keep the working directory in which they were started, so each directory has its own. They keep
    the environment and the logins of their start, too: a block with others has workers ``apart``.
    """
    pools: _Pools = {} if apart else _pools

    class Shared(WorkerPool):
        """A class, for modules that are imported in the block may name it in a type."""

        def __new__(
            cls, processes: int = 0, may_fork: bool = False, time_limit: float | None = None
        ) -> WorkerPool:  # type: ignore[misc]
            known = (processes, time_limit, os.getcwd())
            return pools.setdefault(known, _WarmPool(processes, time_limit=time_limit))

    users = ("mm_assets.pool.workers", "mm_assets.graph.io_manager", "mm_assets.dataset")
    with pytest.MonkeyPatch.context() as patch:
        for name in users:
            if name in sys.modules:
                patch.setattr(sys.modules[name], "WorkerPool", Shared)
        yield
    for name in users:  # one that was imported in the block
        if name in sys.modules and sys.modules[name].WorkerPool is Shared:
            sys.modules[name].WorkerPool = WorkerPool
    if apart:
        _end(pools)


@pytest.fixture(scope="package", autouse=True)
def shared_workers() -> Iterator[None]:
    """For a `conftest.py` to import: the tests below it share their workers."""
    with warm_workers():
        yield


def end_warm_workers() -> None:
    """End the workers; the session calls it when its tests are done."""
    _end(_pools)


def _end(pools: _Pools) -> None:
    for used in pools.values():
        WorkerPool.close(used)
    pools.clear()
