"""Shards that change or are mended are made again without a click, as is what a killed run has left."""

from __future__ import annotations

import os
import signal

import dagster as dg
import pytest

from mm_assets.demo import make_shards
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.automated import BROKEN, SECONDS, Storage, ended
from mm_assets_tests.live.daemon import DagsterDev

pytestmark = pytest.mark.live


def test_what_changes_is_made_again_and_a_killed_run_is_completed(sqlite: Storage) -> None:
    """A mended shard, a replaced one, a changed bound; then the run's process is killed in the middle."""
    storage = sqlite
    make_shards(storage.raw, members=4, pdf=0, samples=2)
    bad = storage.raw / "web-00003.tar"
    whole = bad.read_bytes()
    bad.write_bytes(BROKEN)
    with storage.dev(MM_AUTOMATION="all") as dev:
        dev.wait_for(ended(1), SECONDS, "the first backfill")
        assert storage.tars() == {"web-00000", "web-00001", "web-00002"}
        bad.write_bytes(whole)
        (storage.raw / "web-00001.tar").unlink()
        make_shards(storage.raw, members=2, pdf=0, samples=2, seed="other")
        titles = dev.wait_for(ended(2), SECONDS, "the second backfill")
        assert titles[0] == "2 shards: 1 the raw shard has changed, 1 failed before"
        assert storage.tars() == {f"web-{n:05d}" for n in range(4)}
    with storage.dev(MM_AUTOMATION="all", MM_MIN_ASPECT_RATIO="1.0") as dev:
        kill_run(dev)
        dev.wait_for(ended(3), SECONDS + 120, "the backfill whose run was killed")
        with dev.instance() as instance:
            statuses = sorted(run.status.value for run in instance.get_runs(limit=2))
        assert statuses == ["FAILURE", "SUCCESS"]
        for asset in ASSETS:
            assert len(dev.partitions(asset)["materialized"]) == 4


def kill_run(dev: DagsterDev) -> None:
    """Kill the process of the next run that is at work."""

    def find(instance: dg.DagsterInstance) -> int | None:
        for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
            for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
                data = entry.get_dagster_event().event_specific_data
                pid = getattr(data, "metadata", {}).get("pid")
                if pid is not None:
                    return int(str(pid.value))
        return None

    os.kill(dev.wait_for(find, SECONDS, "the run"), signal.SIGKILL)
