"""A graph that makes its shards without a click, under a real daemon, in one of the profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq

from mm_assets.formats.lance.table import LanceTable
from mm_assets_tests.live.daemon import REPOSITORY, DagsterDev

BROKEN = b"no tar" * 100
SECONDS = 240  # two ticks of the sensor, two rounds of the backfill daemon, on a busy machine


@dataclass
class Storage:
    """Raw shards and the outputs of a graph that makes them by itself, in one of the profiles.

    ``serve`` makes the server of a home with variables of the environment.
    """

    folder: Path
    serve: Callable[[Path, Mapping[str, str]], DagsterDev]

    @property
    def raw(self) -> Path:
        return self.folder / "raw"

    def dev(self, **environment: str) -> DagsterDev:
        variables = {"MM_RAW_SHARDS": str(self.raw), "MM_STORAGE": str(self.folder / "storage")}
        return self.serve(self.folder / "home", variables | {"MM_WORKERS": "1"} | environment)

    def tars(self) -> set[str]:
        return {path.stem for path in (self.folder / "storage" / "webdataset").glob("*.tar")}

    def rows(self) -> tuple[dict[str, int], dict[str, int]]:
        """Rows of each shard in the filtered Parquet and in the Lance table."""
        root = self.folder / "storage"
        parquet = {
            path.stem: pq.read_metadata(path).num_rows for path in (root / "filtered").glob("*.parquet")
        }
        table = LanceTable(root / "lance" / "items.lance").partitions()
        return parquet, {name: facts.rows for name, facts in table.items()}


def in_sqlite(home: Path, variables: Mapping[str, str]) -> DagsterDev:
    """A server of `mm-assets ui` with the project's `dagster.yaml`; a killed run is found sooner."""
    yaml = (REPOSITORY / "dagster.yaml").read_text()
    slow, quick = "poll_interval_seconds: 30", "poll_interval_seconds: 5"
    assert yaml.count(slow) == 1
    return DagsterDev("mm_assets.definitions", home, variables, yaml.replace(slow, quick))


def backfills(instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    """Status and title, the latest first."""
    return [(each.status.value, each.title or "") for each in instance.get_backfills()]


def ended(count: int) -> Callable[[dg.DagsterInstance], list[str]]:
    """Titles of that many backfills, once they have all ended."""

    def find(instance: dg.DagsterInstance) -> list[str]:
        found = backfills(instance)
        done = [title for status, title in found if status.startswith("COMPLETED")]
        return done if len(done) == len(found) == count else []

    return find


def ended_ticks(instance: dg.DagsterInstance, since: float) -> int:
    """Ticks of the sensor `alerts` that began after a moment and have ended."""
    return sum(
        tick.status.value == "SKIPPED"
        for state in instance.all_instigator_state()
        if state.instigator_name == "alerts"
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id, after=since)
    )
