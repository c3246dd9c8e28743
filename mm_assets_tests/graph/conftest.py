"""A deployment per test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from mm_assets_tests.graph.deployment import Deployment


@pytest.fixture
def deploy(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Deployment]]:
    with dg.instance_for_test(temp_dir=str(tmp_path_factory.mktemp("dagster_home"))) as instance:

        def make(raw: str | None = None, storage: str | None = None, **environment: str) -> Deployment:
            return Deployment(
                raw or str(tmp_path / "raw"), storage or str(tmp_path / "storage"), instance, {"MM_WORKERS": "2", **environment}
            )

        yield make
