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


@contextmanager
def warm_workers() -> Iterator[None]:
    """Give whoever asks for a pool in this process the same workers, until the end of the block.

    Workers keep the working directory in which they were started, so each directory has its own.
    """
    pools: dict[tuple[int, float | None, str], _WarmPool] = {}

    def pool(processes: int, may_fork: bool = False, time_limit: float | None = None) -> _WarmPool:
        known = (processes, time_limit, os.getcwd())
        return pools.setdefault(known, _WarmPool(processes, time_limit=time_limit))

    with pytest.MonkeyPatch.context() as patch:
        for name in ("mm_assets.pool.workers", "mm_assets.graph.io_manager"):
            if name in sys.modules:
                patch.setattr(sys.modules[name], "WorkerPool", pool)
        yield
    for used in pools.values():
        WorkerPool.close(used)
