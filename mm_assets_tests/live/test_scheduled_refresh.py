"""The schedule makes what is due, under a real daemon."""

from __future__ import annotations

import time
from collections.abc import Mapping

import dagster as dg
import pytest

from mm_assets.demo import make_shards
from mm_assets_tests.cli.commands import run
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.automated import BROKEN, SECONDS, Storage, backfills, ended
from mm_assets_tests.live.daemon import wait_for

pytestmark = pytest.mark.live


def test_the_schedule_makes_what_is_due_and_then_nothing(sqlite: Storage) -> None:
    """One shard is missing, one has failed and was mended, one has changed; the others are as they were."""
    tars = make_shards(sqlite.raw, members=4, pdf=0, samples=2)
    late, failed, changed = (tar.stem for tar in tars[1:])
    whole = {key: (sqlite.raw / f"{key}.tar").read_bytes() for key in (late, failed)}
    (sqlite.raw / f"{late}.tar").unlink()
    (sqlite.raw / f"{failed}.tar").write_bytes(BROKEN)
    server = sqlite.dev(MM_REFRESH_CRON="* * * * *")
    first = run("run", **server.environment)
    assert first.returncode == 1 and len(sqlite.tars()) == 2, first.stderr
    for key, content in whole.items():
        (sqlite.raw / f"{key}.tar").write_bytes(content)
    (sqlite.raw / f"{changed}.tar").unlink()
    make_shards(sqlite.raw, members=4, pdf=0, samples=2, seed="other")
    with server as dev:
        dev.wait_for(is_made, SECONDS, "the run of the backfill")
        with dev.instance() as instance:
            then = time.time()
            wait_for(lambda: refreshed_since(instance, then), SECONDS, "a later tick")
            (title,) = wait_for(lambda: ended(1)(instance), SECONDS, "the end of the backfill")
            assert title.startswith("3 shards: ")
            reasons = {"1 never made", "1 failed before", "1 the raw shard has changed"}
            assert set(title.removeprefix("3 shards: ").split(", ")) == reasons
            assert backfills(instance) == [("COMPLETED_SUCCESS", title)], "the later tick had nothing to do"
            made = {
                str(record.partition_key)
                for asset in ASSETS
                for record in instance.fetch_materializations(dg.AssetKey(asset), limit=100).records
                if "dagster/backfill" in _tags(instance, record.run_id)
            }
            assert made == {late, failed, changed}


def is_made(instance: dg.DagsterInstance) -> bool:
    """Whether a run of a backfill has succeeded."""
    done = [dg.DagsterRunStatus.SUCCESS]
    return bool(instance.get_runs_count(dg.RunsFilter(job_name="__ASSET_JOB", statuses=done)))


def refreshed_since(instance: dg.DagsterInstance, moment: float) -> bool:
    """Whether a run of the job `refresh` has begun after this moment, and succeeded."""
    done = dg.RunsFilter(job_name="refresh", statuses=[dg.DagsterRunStatus.SUCCESS])
    return any((record.start_time or 0) > moment for record in instance.get_run_records(done))


def _tags(instance: dg.DagsterInstance, run_id: str) -> Mapping[str, str]:
    run = instance.get_run_by_id(run_id)
    return {} if run is None else run.tags
