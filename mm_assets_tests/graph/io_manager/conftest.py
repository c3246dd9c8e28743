"""A toy deployment: raw text shards, an output root, a Dagster instance of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from mm_assets.graph import dagster_internals
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets_tests.graph.io_manager import toy
from mm_assets_tests.kept_dagster import kept_engines
from mm_assets_tests.quick_instance import quick_instance


@dataclass
class Toy:
    folder: Path
    instance: dg.DagsterInstance
    config: dict[str, Any] = field(default_factory=dict)
    storage: str = "out"

    @property
    def raw(self) -> Path:
        return self.folder / "raw"

    @property
    def root(self) -> Path:
        return self.folder / self.storage

    def shard(self, key: str, text: str = "") -> None:
        """Write a raw shard, and register its partition."""
        self.raw.mkdir(parents=True, exist_ok=True)
        (self.raw / f"{key}.txt").write_text(text or f"first of {key}\nx\n{key}\n")
        self.instance.add_dynamic_partitions("shards", [key])

    def shards(self, count: int) -> list[str]:
        keys = [f"k{n:02d}" for n in range(1, count + 1)]
        for key in keys:
            self.shard(key)
        return keys

    def definitions(self) -> dg.Definitions:
        return toy.definitions(str(self.raw), str(self.root), **self.config)

    def run(
        self, job: str, first: str | None = None, last: str | None = None, **kwargs: Any
    ) -> dg.ExecuteInProcessResult:
        """Execute a job over a range of shards in one run."""
        tags = (
            {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
            if first
            else {}
        )
        job_def = self.definitions().resolve_job_def(job)
        return job_def.execute_in_process(instance=self.instance, tags=tags, raise_on_error=False, **kwargs)

    def history(self, asset: str, kind: str = "materializations") -> list[dg.EventLogRecord]:
        """All events of an asset, oldest first."""
        records = getattr(self.instance, f"fetch_{kind}")(dg.AssetKey(asset), limit=1000).records
        return list(reversed(records))

    def landed(self, asset: str, run: dg.ExecuteInProcessResult) -> list[str]:
        """Partitions materialized by a run, in order; a shard that is logged twice occurs twice."""
        return sorted(str(r.partition_key) for r in self.history(asset) if r.run_id == run.run_id)

    def latest(self, asset: str, keys: Sequence[str]) -> dict[str, dagster_internals.Latest]:
        return dagster_internals.latest_materializations(self.instance, dg.AssetKey(asset), keys)

    def status(self, asset: str, keys: Sequence[str]) -> dict[str, str]:
        found = self.instance.get_status_by_partition(dg.AssetKey(asset), list(keys), SHARDS) or {}
        return {key: status.name if (status := found.get(key)) else "MISSING" for key in keys}

    def failures(self, run: dg.ExecuteInProcessResult) -> dict[str, str]:
        """Error text of each failed step."""
        return {str(e.step_key): str(e.step_failure_data.error) for e in run.all_events if e.is_step_failure}

    def log(self, run: dg.ExecuteInProcessResult, level: int = 40) -> list[str]:
        return [
            e.user_message
            for e in self.instance.all_logs(run.run_id)
            if int(e.level) >= level and not e.is_dagster_event
        ]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Toy]:
    with quick_instance(tmp_path / "artifacts") as instance:
        yield Toy(tmp_path, instance)


@pytest.fixture
def deployment_on_disk(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    """For runs whose steps are processes: they meet in the event log."""
    with (
        kept_engines(),
        dg.instance_for_test(temp_dir=str(tmp_path_factory.mktemp("home"))) as instance,
    ):
        yield Toy(tmp_path, instance)
