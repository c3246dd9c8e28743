"""The schedule makes what is due, under a real daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import dagster as dg
import pytest

from mm_assets.demo import make_shards
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.automated import BROKEN, SECONDS, Storage, backfills, ended
from mm_assets_tests.live.daemon import wait_for

pytestmark = pytest.mark.live


def test_the_schedule_makes_what_is_due_and_then_nothing(sqlite: Storage) -> None:
    """One shard is missing, one has failed and was mended, one has changed; the others are as they were."""
    sqlite_tars = make_shards(sqlite.raw, members=6, pdf=0, samples=2)
    late, failed, changed = (tar.stem for tar in sqlite_tars[3:])
    whole = {key: (sqlite.raw / f"{key}.tar").read_bytes() for key in (late, failed)}
    (sqlite.raw / f"{late}.tar").unlink()
    (sqlite.raw / f"{failed}.tar").write_bytes(BROKEN)
    server = sqlite.dev(MM_REFRESH_CRON="* * * * *")
    command = [sys.executable, "-m", "mm_assets.cli", "run"]
    first = subprocess.run(command, env=server.environment, cwd=server.home, capture_output=True, check=False)
    assert first.returncode == 1 and len(sqlite.tars()) == 4, first.stderr
    for key, content in whole.items():
        (sqlite.raw / f"{key}.tar").write_bytes(content)
    (sqlite.raw / f"{changed}.tar").unlink()
    make_shards(sqlite.raw, members=6, pdf=0, samples=2, seed="other")
    with server as dev:
        titles = dev.wait_for(ended(1), SECONDS, "the backfill of the first tick")
        (title,) = titles
        assert title.startswith("3 shards: ")
        reasons = {"1 never made", "1 failed before", "1 the raw shard has changed"}
        assert set(title.removeprefix("3 shards: ").split(", ")) == reasons
        with dev.instance() as instance:
            made = {
                str(record.partition_key)
                for asset in ASSETS
                for record in instance.fetch_materializations(dg.AssetKey(asset), limit=100).records
                if "dagster/backfill" in _tags(instance, record.run_id)
            }
            assert made == {late, failed, changed}
            before = refreshes(instance)
            wait_for(
                lambda: refreshes(instance) >= before + 2,
                SECONDS,
                "two more ticks, one of them after the backfill",
            )
            assert backfills(instance) == [("COMPLETED_SUCCESS", title)], "the later ticks had nothing to do"


def refreshes(instance: dg.DagsterInstance) -> int:
    """How many runs of the job `refresh` have succeeded."""
    statuses = [dg.DagsterRunStatus.SUCCESS]
    return instance.get_runs_count(dg.RunsFilter(job_name="refresh", statuses=statuses))


def _tags(instance: dg.DagsterInstance, run_id: str) -> Mapping[str, str]:
    run = instance.get_run_by_id(run_id)
    return {} if run is None else run.tags
