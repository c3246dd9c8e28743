"""Commands of the graph in a folder of their own, run in this process over shards of a few bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import dagster as dg
import pytest

from mm_assets.definitions import SHARDED_ASSETS
from mm_assets.headless import run as headless_run
from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.kept_dagster import kept_dagster, kept_engines
from mm_assets_tests.quick_instance import copy_of, quick_instance
from mm_assets_tests.warm_workers import warm_workers

__all__ = ["kept_dagster"]

# In the order in which commands name them.
ASSETS = [
    *("curated_parquet", "image_scores", "quarantine", "sample_scores", "filtered_parquet"),
    *("arrow_cache", "final_tars", "lance_table"),
]
assert set(ASSETS) == {asset.key.to_user_string() for asset in SHARDED_ASSETS}
# For runs of these alone, where a test is about what is filtered: half of the time.
FILTERED = ("--assets", "curated_parquet,image_scores,sample_scores,filtered_parquet")


@dataclass
class Project:
    """Raw shards, a storage root, and a Dagster instance.

    ``memory`` is the instance of all commands; None: each opens the one that it makes on the disk.
    """

    folder: Path
    memory: dg.DagsterInstance | None = None

    @property
    def raw(self) -> Path:
        return self.folder / "raw"

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def shard(self, name: str, text: str = "some text") -> Path:
        """Write a raw shard of one document, a text and an image of 480 x 320 pixels."""
        path = self.raw / f"{name}.tar"
        document = {"texts": [text, None], "images": [None, f"{name}.png"]}
        make_tar(path, [(f"{name}.json", document), (f"{name}.png", picture(0)[1])])
        return path

    def shards(self, names: str) -> None:
        for name in names:
            self.shard(name)

    def broken(self, name: str) -> Path:
        """Write a raw shard in which nothing can be read."""
        path = self.raw / f"{name}.tar"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no tar, whatever its name says" * 100)
        return path

    @property
    def settings(self) -> dict[str, str]:
        return {
            "MM_RAW_SHARDS": str(self.raw),
            "MM_STORAGE": str(self.storage),
            "MM_WORKERS": "1",
            "DAGSTER_HOME": str(self.home),
        }

    def configured(self) -> AbstractContextManager[object]:
        """With its settings in the environment, for definitions that are built."""
        return patch.dict(os.environ, self.settings)

    def command(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, **{**self.settings, **settings})

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return self.command("run", *arguments, **settings)

    def plan(self, *arguments: str, **settings: str) -> list[str]:
        """What a dry run prints."""
        return fine(self.run("--dry-run", *arguments, **settings)).splitlines()

    def instance(self) -> AbstractContextManager[dg.DagsterInstance]:
        return nullcontext(self.memory) if self.memory else dg.DagsterInstance.from_config(str(self.home))

    def made(self, run: int = 0) -> dict[str, list[str]]:
        """Partitions that landed in a run, by asset; the latest run is 0. Unchanged ones are in brackets."""
        with self.instance() as instance:
            found = instance.get_runs()[run]
            by_asset: dict[str, list[str]] = {}
            for entry in instance.all_logs(found.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION):
                assert entry.dagster_event is not None
                made = entry.dagster_event.step_materialization_data.materialization
                key = f"[{made.partition}]" if "unchanged" in made.metadata else str(made.partition)
                by_asset.setdefault(made.asset_key.to_user_string(), []).append(key)
            return {asset: sorted(keys) for asset, keys in by_asset.items()}

    def runs(self) -> int:
        with self.instance() as instance:
            return instance.get_runs_count()


@pytest.fixture(scope="session")
def working_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("working_directory")


@pytest.fixture(scope="package", autouse=True)
def shared_by_all(working_directory: Path) -> Iterator[None]:
    """One working directory, so that workers are shared."""
    with kept_engines(), warm_workers(), pytest.MonkeyPatch.context() as changed:
        changed.chdir(working_directory)
        yield


@contextmanager
def _with(instance: dg.DagsterInstance, folder: Path) -> Iterator[Project]:
    """A project all commands of which use this instance."""
    with instance, pytest.MonkeyPatch.context() as patch:
        patch.setattr(headless_run, "_instance", lambda: nullcontext(instance))
        yield Project(folder, instance)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """With our event log and runs in memory: in Dagster's files a run costs four times as much."""
    (tmp_path / "home").mkdir()
    with _with(quick_instance(tmp_path / "home"), tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("made")
    (folder / "home").mkdir()
    instance = quick_instance(folder / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headless_run, "_instance", lambda: nullcontext(instance))
        found = Project(folder, instance)
        found.shards("ab")
        fine(found.run())
    return found


@pytest.fixture
def made(_made_once: Project, tmp_path: Path) -> Iterator[Project]:
    """After a run of two shards, a and b."""
    for folder in ("raw", "storage"):
        shutil.copytree(_made_once.folder / folder, tmp_path / folder)
    assert _made_once.memory is not None
    instance = copy_of(_made_once.memory, tmp_path / "home", _made_once.folder, tmp_path)
    with _with(instance, tmp_path) as found:
        yield found


@pytest.fixture
def project_on_disk(tmp_path: Path) -> Project:
    return Project(tmp_path)
