"""A graph with an instance of its own, and what its sensors and jobs do in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.reconstruct import ReconstructableRepository

from mm_assets.automation import backfills
from mm_assets.definitions import build_definitions
from mm_assets.formats.raw_shards import Listing
from mm_assets.graph.instance_queries import STARTED_BY
from mm_assets.graph.resources import resources_from_environment
from mm_assets_tests.graph.deployment import Deployment, write_tar
from mm_assets_tests.graph.samples import samples
from mm_assets_tests.kept_dagster import kept_dagster
from mm_assets_tests.quick_instance import quick_instance
from mm_assets_tests.warm_workers import shared_workers

__all__ = ["kept_dagster", "shared_workers"]


@dataclass
class Operated(Deployment):
    """A deployment in which sensors tick and jobs run as its daemon would have them."""

    cursor: str | None = None
    requested: list[str] = field(default_factory=list)
    """Jobs that the last tick has asked for."""

    def shard(self, name: str, count: int = 1, prefix: str = "") -> None:
        """Put a sound raw shard there; another count makes other bytes."""
        write_tar(Path(self.raw, f"{name}.tar"), samples(count, prefix or name))

    def tick(self, mode: str = "new", name: str = "automation") -> str:
        """Evaluate a sensor once, apply what it asks for, and return what it tells."""
        with self._configured():
            import os

            os.environ["MM_AUTOMATION"] = mode
            definitions = build_definitions()
            sensor = definitions.resolve_sensor_def(name)
            context = dg.build_sensor_context(
                instance=self.instance,
                cursor=self.cursor,
                repository_def=definitions.get_repository_def(),
                resources={"raw": resources_from_environment()["raw"]},
            )
            found = sensor(context)
        self.requested = []
        if isinstance(found, dg.SkipReason):
            return found.skip_message or ""
        assert isinstance(found, dg.SensorResult)
        for request in found.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions("shards", list(request.partition_keys))
        self.requested = [request.job_name or "" for request in found.run_requests or ()]
        for event in found.asset_events:
            self.instance.report_runless_asset_event(event)
        if name == "automation":
            self.cursor = found.cursor
        return (found.skip_reason.skip_message if found.skip_reason else "") or ""

    def backfills(self) -> list[tuple[str, dict[str, list[str]]]]:
        """Started by, and partitions by asset, of every backfill, the latest first."""
        with self._configured():
            graph = build_definitions().resolve_asset_graph()
        found = []
        with dg.partition_loading_context(dynamic_partitions_store=self.instance):
            for backfill in self.instance.get_backfills():
                target = backfill.get_asset_backfill_data(graph).target_subset
                assets = {
                    asset.to_user_string(): sorted(subset.get_partition_keys())
                    for asset, subset in target.partitions_subsets_by_asset_key.items()
                }
                found.append((backfill.tags[STARTED_BY], assets))
        return found

    @contextmanager
    def graph(self) -> Iterator[tuple[AssetGraph, Listing]]:
        """The assets, and the raw shards as they are now."""
        with self._configured():
            yield build_definitions().resolve_asset_graph(), resources_from_environment()["raw"].listing()

    def finish_backfills(self) -> None:
        """Have the daemon done with them: their status alone says so here."""
        from dagster._core.execution.backfill import BulkActionStatus

        for backfill in self.instance.get_backfills():
            self.instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED_SUCCESS))

    def planned_run(
        self, keys: Sequence[str] | None = None, assets: Sequence[str] | None = None
    ) -> dg.DagsterRun:
        """A run of assets and neighbouring shards (default: all) that is created and begins no work."""
        with self._configured():
            definitions = build_definitions()
            listed = list(resources_from_environment()["raw"].listing())
            self.instance.add_dynamic_partitions("shards", listed)
            keys = keys or listed
            tags = {
                "dagster/asset_partition_range_start": keys[0],
                "dagster/asset_partition_range_end": keys[-1],
            }
            return self.instance.create_run_for_job(
                definitions.resolve_job_def("all_assets"),
                tags=tags,
                asset_selection=None if assets is None else frozenset(map(dg.AssetKey, assets)),
            )

    def run_job(self, name: str) -> bool:
        """Run a job as its schedule would, in a code location; whether it succeeded."""
        location = ReconstructableRepository.for_module("mm_assets.definitions", "defs")
        resources = {
            "raw": {"config": {"locations": self.raw, "excluded": self.storage}},
            "maintained": {"config": {"root": self.storage}},
            "bounds": {
                "config": {
                    "dedup_documents": self.environment.get("MM_DEDUP_DOCUMENTS", "off"),
                    "root": self.storage,
                }
            },
        }
        needed = {
            "refresh": ["raw"],
            "maintenance": ["maintained"],
            "duplicates": ["maintained", "bounds"],
        }[name]
        config = {
            "resources": {key: resources[key] for key in needed},
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
        }
        job = location.get_reconstructable_job(name)
        return dg.execute_job(job, instance=self.instance, run_config=config).success


@pytest.fixture(autouse=True)
def looks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfills, "LOOK_AGAIN_SECONDS", 0)


@contextmanager
def _four_shards(folder: Path) -> Iterator[Operated]:
    with quick_instance(folder / "dagster_home") as instance:
        found = Operated(str(folder / "raw"), str(folder / "storage"), instance, {"MM_WORKERS": "1"})
        for name in "abcd":
            found.shard(name)
        yield found


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    """Raw shards a to d, of which nothing is made; with the event log that `dagster.yaml` names."""
    with _four_shards(tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    with _four_shards(tmp_path_factory.mktemp("made")) as found:
        assert found.run().success
        yield found


@pytest.fixture
def made(_made_once: Operated, tmp_path: Path) -> Iterator[Operated]:
    """After a run of all."""
    copy = _made_once.copied(tmp_path)
    with copy.instance:
        yield copy


@pytest.fixture(scope="session")
def _failed_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    with _four_shards(tmp_path_factory.mktemp("failed")) as found:
        Path(found.raw, "b.tar").write_bytes(b"no tar" * 100)
        assert not found.run().success
        yield found


@pytest.fixture
def failed(_failed_once: Operated, tmp_path: Path) -> Iterator[Operated]:
    """After a run of all, in which b has failed: it is no tar."""
    copy = _failed_once.copied(tmp_path)
    with copy.instance:
        yield copy
