"""A deployment per test. Worker processes and one finished deployment are shared, and the event log is ours:
a run with Dagster's own files costs four times as much, and `test_check_states` reads those.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.graph.deployment import Deployment, failed_checks, write_tar
from mm_assets_tests.graph.erased_world import erased_template, world
from mm_assets_tests.kept_dagster import kept_dagster, kept_engines
from mm_assets_tests.quick_instance import quick_instance
from mm_assets_tests.warm_workers import shared_workers

__all__ = ["erased_template", "kept_dagster", "shared_workers", "world"]


@pytest.fixture
def deploy(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Deployment]]:
    with quick_instance(tmp_path_factory.mktemp("dagster_home")) as instance:
        yield partial(_deployment, tmp_path, instance)


@pytest.fixture
def deploy_on_disk(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Deployment]]:
    """With the databases that a user's `dagster dev` has."""
    with (
        kept_engines(),
        dg.instance_for_test(temp_dir=str(tmp_path_factory.mktemp("dagster_home"))) as instance,
    ):
        yield partial(_deployment, tmp_path, instance)


def _deployment(
    folder: Path,
    instance: dg.DagsterInstance,
    raw: str | None = None,
    storage: str | None = None,
    **environment: str,
) -> Deployment:
    return Deployment(
        raw or str(folder / "raw"),
        storage or str(folder / "storage"),
        instance,
        {"MM_WORKERS": "2", **environment},
    )


@pytest.fixture(scope="session")  # a process of xdist comes back to a package
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two shards through the whole graph; each test takes a copy of what the run has left."""
    folder = tmp_path_factory.mktemp("made")
    one = {
        "sample_id": "doc.one",
        "n": 5,
        "score": 0.5,
        "texts": ["first", None, None, None],
        "images": [None, "a.png", None, "b.png"],
    }
    two = {"sample_id": "dir/two", "n": 6, "score": 1.5, "texts": ["other text"], "images": [None]}
    three = {"sample_id": "three", "n": 7, "score": 2.5, "texts": ["t"], "images": [None]}
    documents = {
        f"{name}.json": json.dumps(payload).encode() for name, payload in (("one", one), ("two", two))
    }
    write_tar(folder / "raw" / "p.tar", {**documents, "a.png": picture(0)[1], "b.png": picture(3)[1]})
    write_tar(folder / "raw" / "q.tar", {"three.json": json.dumps(three).encode()})
    bounds = {"MM_MIN_ASPECT_RATIO": "0", "MM_MAX_ASPECT_RATIO": "100"}
    with quick_instance(tmp_path_factory.mktemp("home")) as instance:
        deployment = Deployment(
            str(folder / "raw"), str(folder / "storage"), instance, {"MM_WORKERS": "1", **bounds}
        )
        result = deployment.run()
        assert result.success
        assert failed_checks(result) == set()
        yield deployment


@pytest.fixture
def copied(made: Deployment, tmp_path: Path) -> Iterator[Deployment]:
    deployment = made.copied(tmp_path)
    with deployment.instance:
        yield deployment
