"""The Postgres profile as it is deployed: `deploy/postgres/dagster.yaml`, the commands of its compose file, a
real Postgres and a real S3 store.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.run_coordinator import QueuedRunCoordinator

from mm_assets.event_log.postgres import BatchedPostgresEventLogStorage
from mm_assets.graph.dagster_internals import LANCE_POOL
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.daemon import wait_for
from mm_assets_tests.live.s3_server import S3Server
from mm_assets_tests.live.services import Services
from mm_assets_tests.postgres_server import PostgresServer
from tools.demo import make_shards

pytestmark = [pytest.mark.live, pytest.mark.clients]

KEYS = [f"web-{number:05d}" for number in range(8)]
FIRST, SECOND, THIRD = KEYS[:2], KEYS[2:4], KEYS[4:]
BAD = "zoo-bad"
SECONDS = 300
STOPPED = ("SUCCESS", "FAILURE", "CANCELED")


@dataclass
class Profile:
    services: Services
    s3: S3Server

    def launch(self, keys: list[str]) -> str:
        """Launch all assets for neighbouring shards; the run's id."""
        tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        return self.services.launch_run("all_assets", tags)

    def interval(self, run_id: str, step: str) -> tuple[float, float]:
        """When a step began and ended."""
        kinds = {dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_SUCCESS}
        with self.services.instance() as instance:
            entries = [e for e in instance.all_logs(run_id, of_type=kinds) if e.step_key == step]
        begun, ended = (entry.timestamp for entry in entries)
        return begun, ended


def is_in(instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType, step: str) -> bool:
    """Whether a run has such an event of a step."""
    return any(entry.step_key == step for entry in instance.all_logs(run_id, of_type=kind))


def retries(instance: dg.DagsterInstance, run_id: str) -> list[dg.DagsterRun]:
    return list(instance.get_runs(dg.RunsFilter(tags={"dagster/parent_run_id": run_id})))


@pytest.fixture(scope="module")
def profile(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, s3: S3Server
) -> Iterator[Profile]:
    folder = tmp_path_factory.mktemp("profile")
    make_shards(folder / "raw", members=len(KEYS), pdf=0, samples=2)
    (folder / "raw" / f"{BAD}.tar").write_bytes(b"no tar" * 100)
    variables = {
        "MM_RAW_SHARDS": str(folder / "raw"),
        "MM_STORAGE": str(folder / "storage"),
        "MM_WORKERS": "1",
    }
    with postgres.database("profile"):
        services = Services(folder / "home", postgres, "profile", s3, variables)
        with services:

            def are_registered(instance: dg.DagsterInstance) -> bool:
                return {*KEYS, BAD} <= set(instance.get_dynamic_partitions("shards"))

            services.wait_for(are_registered, SECONDS, "the sensor to register the shards")
            yield Profile(services, s3)


def test_the_instance_is_as_configured_and_healthy(profile: Profile) -> None:
    with profile.services.instance() as instance:
        assert isinstance(instance.event_log_storage, BatchedPostgresEventLogStorage)
        assert isinstance(instance.run_coordinator, QueuedRunCoordinator)
        concurrency = instance.get_concurrency_config()
        assert concurrency.run_queue_config is not None
        assert concurrency.run_queue_config.max_concurrent_runs == 4
        assert concurrency.run_queue_config.tag_concurrency_limits == [
            {"key": "dagster/backfill", "limit": 2}
        ]
        assert concurrency.pool_config.default_pool_limit == 1
        assert instance.run_retries_enabled and not instance.run_retries_retry_on_asset_or_op_failure
        tables = {type(each).__name__ for each in (instance.run_storage, instance.schedule_storage)}
        assert tables == {"PostgresRunStorage", "PostgresScheduleStorage"}
    assert not list(profile.services.home.rglob("*.db")), "nothing is in SQLite"
    wait_for(lambda: profile.services.health() == {"code": 0, "webserver": 0, "daemon": 0}, 120, "health")


def test_two_runs_are_never_in_the_lance_step_at_once(profile: Profile) -> None:
    """Both have to wait for somebody else first, so that both want it at the same moment."""
    with profile.services.instance() as instance:
        log = instance.event_log_storage
        log.initialize_concurrency_limit_to_default(LANCE_POOL)
        assert log.claim_concurrency_slot(LANCE_POOL, "somebody", "step").is_claimed
        runs = [profile.launch(FIRST), profile.launch(SECOND)]
        ended = dg.DagsterEventType.STEP_SUCCESS
        wait_for(
            lambda: all(is_in(instance, run, ended, "arrow_cache") for run in runs),
            SECONDS,
            "both runs to do all that they can",
        )
        for run in runs:
            assert profile.services.run_status(run) == "STARTED"
            assert not is_in(instance, run, dg.DagsterEventType.STEP_START, "lance_table")
        log.free_concurrency_slots_for_run("somebody")
    for run in runs:
        assert profile.services.wait_for_run(run, SECONDS) == "SUCCESS"
    one, other = sorted(profile.interval(run, "lance_table") for run in runs)
    print(
        f"lance steps: {one[1] - one[0]:.2f} s, pause {other[0] - one[1]:.2f} s, {other[1] - other[0]:.2f} s"
    )
    assert one[0] < one[1] <= other[0] < other[1]
    both = sorted(profile.interval(run, "curated_parquet") for run in runs)
    assert both[0][1] < one[0] and both[1][1] < one[0], "the rest of the two runs was not held up"


def test_a_run_that_failed_for_a_bad_shard_is_not_launched_again(profile: Profile) -> None:
    """And what its process said is in the store."""
    run = profile.launch([BAD])
    assert profile.services.wait_for_run(run, SECONDS) == "FAILURE"
    for asset in ASSETS:
        assert profile.services.partitions(asset)["failed"] == [BAD]
    with profile.services.instance() as instance:
        stored = instance.get_run_by_id(run)
        assert stored is not None and stored.tags["dagster/will_retry"] == "false"
    store = profile.s3.filesystem()
    (path,) = store.glob(f"{profile.s3.bucket}/dagster/storage/{run}/compute_logs/*.err")
    assert f"{run} - " in store.cat_file(path).decode()
    text = """query($key: [String!]!) { logs: capturedLogs(logKey: $key) { stderr } }"""
    key = [run, "compute_logs", Path(path).stem]
    assert run in profile.services.query(text, key=key)["logs"]["stderr"], "and the UI shows it"


def test_a_killed_run_fails_and_is_completed_by_its_retry(profile: Profile) -> None:
    """It dies in the Lance step, so that its place in the pool is left, too."""
    run = profile.launch(THIRD)
    with profile.services.instance() as instance:

        def holds_the_slot() -> bool:
            found = instance.event_log_storage.get_concurrency_info(LANCE_POOL).claimed_slots
            time.sleep(0.02)
            return any(slot.run_id == run for slot in found)

        pid = profile.services.run_process(run)
        end = time.monotonic() + SECONDS
        while not holds_the_slot():
            assert time.monotonic() < end, "it never came to the Lance step"
        os.kill(pid, signal.SIGKILL)
        assert holds_the_slot()
    killed = time.time()
    assert profile.services.wait_for_run(run, SECONDS) == "FAILURE"
    (retry,) = profile.services.wait_for(lambda instance: retries(instance, run), SECONDS, "the retry")
    assert profile.services.wait_for_run(retry.run_id, SECONDS) == "SUCCESS"
    print(f"completed {time.time() - killed:.0f} s after the kill")
    with profile.services.instance() as instance:
        assert len(retries(instance, run)) == 1
        assert instance.event_log_storage.get_concurrency_info(LANCE_POOL).claimed_slots == []
    for asset in ASSETS:
        assert set(THIRD) <= set(profile.services.partitions(asset)["materialized"])
