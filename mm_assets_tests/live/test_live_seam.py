"""The seam under a real daemon: partial failure in one wave, relaunch of exactly the failed, termination
without remains.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from mm_assets_tests.live.daemon import DagsterDev, is_running, wait_for

pytestmark = pytest.mark.live

KEYS = [f"k{n:02d}" for n in range(1, 13)]
BAD = ["k03", "k07", "k08"]
GOOD = [key for key in KEYS if key not in BAD]
ASSETS = ["curated", "scores", "filtered", "table"]


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

    def runs(self, backfill: str) -> list[dg.DagsterRun]:
        with self.dev.instance() as instance:
            return list(instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill})))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("live")
    raw, root = folder / "raw", folder / "out"
    raw.mkdir()
    dev = DagsterDev(
        "mm_assets_tests.live.toy_location",
        folder / "home",
        {"TOY_RAW": str(raw), "TOY_ROOT": str(root), "TOY_CHUNK": "5"},
    )
    deployment = Deployment(dev, raw, root)
    for key in KEYS:
        deployment.shard(key)
    with dev.instance() as instance:
        instance.add_dynamic_partitions("shards", [*KEYS, "slow1", "slow2", "slow3"])
    with dev:
        yield deployment


@pytest.fixture(scope="module")
def failed_backfill(live: Deployment) -> str:
    """A backfill of 12 shards in chunks of 5, of which two are damaged and one kills its worker."""
    live.shard("k03", "RAISE")
    live.shard("k07", "KILL")
    live.shard("k08", "RAISE")
    return live.dev.launch_backfill(ASSETS, KEYS)


def test_good_shards_go_through_every_asset_in_one_wave(live: Deployment, failed_backfill: str) -> None:
    assert live.dev.wait_for_backfill(failed_backfill) == "COMPLETED_FAILED"
    runs = live.runs(failed_backfill)
    assert sorted(run.status.value for run in runs) == [
        "FAILURE",
        "FAILURE",
        "SUCCESS",
    ]  # k01-k05, k06-k10, k11-k12
    for asset in ASSETS:
        events = live.events(asset)
        assert sorted(str(e.partition_key) for e in events) == GOOD, "one event for each good shard"
        assert {e.run_id for e in events} <= {run.run_id for run in runs}
        shown = live.dev.partitions(asset)
        assert (shown["materialized"], shown["failed"]) == (GOOD, BAD)


def test_relaunch_from_failure_heals_exactly_the_failed(live: Deployment, failed_backfill: str) -> None:
    live.dev.wait_for_backfill(failed_backfill)
    before = {path: path.stat().st_mtime_ns for path in live.root.glob("*/*.out")}
    for key in BAD:
        live.shard(key)
    relaunch = live.dev.relaunch_failed(failed_backfill)
    assert live.dev.wait_for_backfill(relaunch) == "COMPLETED_SUCCESS"
    run_ids = {run.run_id for run in live.runs(relaunch)}
    for asset in ASSETS:
        assert sorted(str(e.partition_key) for e in live.events(asset) if e.run_id in run_ids) == BAD
        shown = live.dev.partitions(asset)
        assert (shown["materialized"], shown["failed"]) == (KEYS, [])
    assert before == {path: path.stat().st_mtime_ns for path in before}


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
    assert len(list(curated.glob(".slow*.tmp"))) == 2, (
        "what was being written lies under names that no reader takes"
    )
    with live.dev.instance() as instance:
        assert "slow1" in instance.get_materialized_partitions(dg.AssetKey("curated"))

    live.shard("slow2")
    live.shard("slow3")
    again = live.dev.launch_run("two", tags)
    assert live.dev.wait_for_run(again) == "SUCCESS"
    assert list(curated.glob(".*.tmp")) == []
    done = {str(e.partition_key): e for e in live.events("curated") if e.run_id == again}
    unchanged = {
        k: "unchanged" in e.asset_materialization.metadata for k, e in done.items() if e.asset_materialization
    }
    assert unchanged == {"slow1": True, "slow2": False, "slow3": False}


def test_run_process_that_is_killed_leaves_no_worker(live: Deployment, tmp_path: Path) -> None:
    note = tmp_path / "slow2"
    live.shard("slow2", f"HALF {note}")
    run = live.dev.launch_run("two", {"dagster/partition": "slow2"})
    worker = int(
        wait_for(
            lambda: note.read_text() if note.exists() else None,
            40,
            "the worker to be in the middle of a write",
        )
    )
    published = (live.root / "curated" / "slow2.out").read_bytes()
    parent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent in live.dev.processes()
    os.kill(parent, signal.SIGKILL)
    wait_for(lambda: not is_running(worker), 5, "the worker to be gone")
    assert live.dev.wait_for_run(run) == "FAILURE"
    assert (live.root / "curated" / "slow2.out").read_bytes() == published


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
