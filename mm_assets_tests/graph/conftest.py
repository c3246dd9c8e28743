"""A deployment per test, and worker processes that all of them share: starting some for every run would take most of the time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.io_managers import workers
from mm_assets.workers import WorkerPool
from mm_assets_tests.graph.deployment import Deployment


class _SharedPool(WorkerPool):
    """Its workers outlive the runs; an interrupted `map` ends them as ever."""

    def close(self) -> None:
        if self._mapping:
            super().close()


@pytest.fixture(scope="package", autouse=True)
def shared_workers() -> Iterator[None]:
    pools: dict[int, _SharedPool] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "WorkerPool", lambda processes: pools.setdefault(processes, _SharedPool(processes)))
        yield
    for pool in pools.values():
        WorkerPool.close(pool)


@pytest.fixture
def deploy(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Deployment]]:
    with dg.instance_for_test(temp_dir=str(tmp_path_factory.mktemp("dagster_home"))) as instance:

        def make(raw: str | None = None, storage: str | None = None, **environment: str) -> Deployment:
            return Deployment(
                raw or str(tmp_path / "raw"), storage or str(tmp_path / "storage"), instance, {"MM_WORKERS": "2", **environment}
            )

        yield make
