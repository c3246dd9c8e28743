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


_pools: dict[tuple[int, float | None, str], _WarmPool] = {}


def _pool(processes: int, may_fork: bool = False, time_limit: float | None = None) -> _WarmPool:
    """Workers keep the working directory in which they were started, so each directory has its own."""
    known = (processes, time_limit, os.getcwd())
    return _pools.setdefault(known, _WarmPool(processes, time_limit=time_limit))


@contextmanager
def warm_workers() -> Iterator[None]:
    """Give whoever asks for a pool in this process the same workers, in all such blocks of a session."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("mm_assets.pool.workers", "mm_assets.graph.io_manager"):
            if name in sys.modules:
                patch.setattr(sys.modules[name], "WorkerPool", _pool)
        yield


def end_warm_workers() -> None:
    """End the workers; the session calls it when its tests are done."""
    for used in _pools.values():
        WorkerPool.close(used)
    _pools.clear()
