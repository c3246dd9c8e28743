"""Shards that are due are made without a click, also when every process of the server was killed meanwhile;
and then nothing is due.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import dagster as dg
import pytest

from mm_assets_tests.cli.commands import run
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.automated import BROKEN, SECONDS, Storage, backfills
from tools.demo import make_shards

pytestmark = pytest.mark.live

KEYS = {f"web-{number:05d}" for number in range(4)}
STARTED = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])


def test_what_is_due_is_made_and_a_killed_server_completes_it(sqlite: Storage) -> None:
    """One shard is missing, one has failed and was mended, one has changed. Every process dies in the middle
    of the run; the next server finds out, and makes it again, once. Its schedule has nothing to do.
    """
    storage = sqlite
    late, failed, changed = (tar.stem for tar in make_shards(storage.raw, members=4, pdf=0, samples=2)[1:])
    whole = {key: (storage.raw / f"{key}.tar").read_bytes() for key in (late, failed)}
    (storage.raw / f"{late}.tar").unlink()
    (storage.raw / f"{failed}.tar").write_bytes(BROKEN)
    server = storage.dev(MM_AUTOMATION="all")
    assert run("run", **server.environment).returncode == 1
    assert storage.tars() == KEYS - {late, failed}
    for key, content in whole.items():
        (storage.raw / f"{key}.tar").write_bytes(content)
    (storage.raw / f"{changed}.tar").unlink()
    make_shards(storage.raw, members=4, pdf=0, samples=2, seed="other")
    with server as dev:
        dev.wait_for(lambda instance: instance.get_runs(STARTED), SECONDS, "the run")
        for pid in dev.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert storage.tars() != KEYS
    with storage.dev(MM_AUTOMATION="all", MM_REFRESH_CRON="* * * * *") as dev, dev.instance() as instance:
        made_whole = dev.wait_for(
            lambda known: storage.tars() == KEYS and completed(known), 2 * SECONDS, "what was killed"
        )
        reasons = [
            reason.removeprefix("1 ") for title in made_whole for reason in title.split(": ")[1].split(", ")
        ]
        # In two backfills where the other two were found due before the new shard was known.
        assert sorted(reasons) == ["failed before", "never made", "the raw shard has changed"]
        then = time.time()
        dev.wait_for(lambda known: refreshed_since(known, then), SECONDS, "a later tick of the schedule")
        assert completed(instance) == made_whole
        of_backfill = instance.get_runs(dg.RunsFilter(job_name="__ASSET_JOB"))
        statuses = sorted(each.status.value for each in of_backfill)
        assert statuses == ["FAILURE", *["SUCCESS"] * len(made_whole)]
        made = {
            str(record.partition_key)
            for asset in ASSETS
            for record in instance.fetch_materializations(dg.AssetKey(asset), limit=100).records
            if record.run_id in {each.run_id for each in of_backfill}
        }
        assert made == {late, failed, changed}
        for asset in ASSETS:
            assert set(dev.partitions(asset)["materialized"]) == KEYS
        in_parquet, in_table = storage.rows()
        assert in_parquet == in_table and in_parquet.keys() == KEYS, "nothing is lost, nothing is there twice"


def completed(instance: dg.DagsterInstance) -> list[str]:
    """Titles of all backfills, once all have made what they were for."""
    found = backfills(instance)
    return [title for _, title in found] if {status for status, _ in found} == {"COMPLETED_SUCCESS"} else []


def refreshed_since(instance: dg.DagsterInstance, moment: float) -> bool:
    """Whether a run of the job `refresh` has begun after this moment, and succeeded."""
    done = dg.RunsFilter(job_name="refresh", statuses=[dg.DagsterRunStatus.SUCCESS])
    return any((record.start_time or 0) > moment for record in instance.get_run_records(done))
