"""A server of which every process is killed, and the next one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import dagster as dg
import pytest

from mm_assets.demo import make_shards
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.automated import SECONDS, Storage, ended

pytestmark = pytest.mark.live


def test_a_server_that_was_killed_completes_what_it_had_begun(storage: Storage) -> None:
    """Every process dies in the middle of a run; after a restart it is found out and made again, once."""
    make_shards(storage.raw, members=20, pdf=0, samples=3)
    keys = {f"web-{n:05d}" for n in range(20)}

    def is_started(instance: dg.DagsterInstance) -> bool:
        return bool(instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])))

    with storage.dev(MM_AUTOMATION="new") as dev:
        dev.wait_for(is_started, SECONDS, "the run")
        for pid in dev.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert storage.tars() != keys
    with storage.dev(MM_AUTOMATION="new") as dev:
        dev.wait_for(ended(1), SECONDS, "the backfill whose server was killed")
        for asset in ASSETS:
            assert set(dev.partitions(asset)["materialized"]) == keys
        in_parquet, in_table = storage.rows()
        assert in_parquet == in_table and in_parquet.keys() == keys, "nothing is lost, nothing is there twice"
        with dev.instance() as instance:
            assert [run.status.value for run in instance.get_runs()] == ["SUCCESS", "FAILURE"]
