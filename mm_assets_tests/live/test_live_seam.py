"""The seam under a real daemon: termination without remains, and the button that repeats failed steps."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from mm_assets_tests.live.daemon import STOCK_YAML, DagsterDev, is_running, wait_for

pytestmark = pytest.mark.live


@dataclass
class Deployment:
    dev: DagsterDev
    raw: Path
    root: Path

    def shard(self, key: str, text: str = "") -> None:
        (self.raw / f"{key}.txt").write_text(text or f"first of {key}\nx\n")

    def events(self, asset: str) -> list[dg.EventLogRecord]:
        with self.dev.instance() as instance:
            return list(reversed(instance.fetch_materializations(dg.AssetKey(asset), limit=500).records))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("live")
    raw, root = folder / "raw", folder / "out"
    raw.mkdir()
    places = {"TOY_RAW": str(raw), "TOY_ROOT": str(root)}
    dev = DagsterDev("mm_assets_tests.live.toy_location", folder / "home", places, STOCK_YAML)
    with dev.instance() as instance:
        instance.add_dynamic_partitions("shards", ["slow1", "slow2", "slow3"])
    with dev:
        yield Deployment(dev, raw, root)


def test_termination_leaves_no_worker_and_nothing_half_published(live: Deployment, tmp_path: Path) -> None:
    notes = [tmp_path / "slow2", tmp_path / "slow3"]
    live.shard("slow1", "fast\n")
    live.shard("slow2", f"HALF {notes[0]}")
    live.shard("slow3", f"HALF {notes[1]}")
    tags = {"dagster/asset_partition_range_start": "slow1", "dagster/asset_partition_range_end": "slow3"}
    run = live.dev.launch_run("two", tags)
    wait_for(
        lambda: all(note.exists() and note.read_text() for note in notes),
        40,
        "both workers to be in the middle of a write",
    )
    wait_for(
        lambda: [e for e in live.events("curated") if e.partition_key == "slow1"],
        10,
        "the good shard's event",
    )
    workers = [int(note.read_text()) for note in notes]
    assert all(map(is_running, workers))

    live.dev.terminate(run)
    assert live.dev.wait_for_run(run, 20) == "CANCELED"
    wait_for(lambda: not any(map(is_running, workers)), 5, "the workers to be gone")
    curated = live.root / "curated"
    assert sorted(p.name for p in curated.glob("slow*")) == ["slow1.out"]
    assert list(live.root.rglob(".*.tmp")) == [], "nor is anything left of what was being written"
    with live.dev.instance() as instance:
        assert "slow1" in instance.get_materialized_partitions(dg.AssetKey("curated"))

    live.shard("slow2")
    live.shard("slow3")
    again = live.dev.launch_run("two", tags)
    assert live.dev.wait_for_run(again) == "SUCCESS"
    done = {str(e.partition_key): e for e in live.events("curated") if e.run_id == again}
    unchanged = {
        k: "unchanged" in e.asset_materialization.metadata for k, e in done.items() if e.asset_materialization
    }
    assert unchanged == {"slow1": True, "slow2": False, "slow3": False}


def test_re_execution_of_a_failed_run_from_failure_stays_red(live: Deployment) -> None:
    """The button of a *run* repeats its failed steps, here the gate alone, and no shard."""
    live.shard("slow1", "RAISE\n")
    run = live.dev.launch_run("two", {"dagster/partition": "slow1"})
    assert live.dev.wait_for_run(run) == "FAILURE"
    live.shard("slow1")
    again = live.dev.rerun_failed(run)
    assert live.dev.wait_for_run(again) == "FAILURE"
    with live.dev.instance() as instance:
        steps = {s.step_key for s in instance.get_run_step_stats(again)}
    assert steps == {"curated_landed", "scores_landed"}
    whole = live.dev.launch_run("two", {"dagster/partition": "slow1"})
    assert live.dev.wait_for_run(whole) == "SUCCESS"
