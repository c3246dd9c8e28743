"""Shards that change or are mended are made again without a click, also when every process of the server was
killed meanwhile.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import dagster as dg
import pytest

from mm_assets.demo import make_shards
from mm_assets_tests.cli.commands import run
from mm_assets_tests.graph.deployment import ASSETS
from mm_assets_tests.live.automated import BROKEN, SECONDS, Storage, ended

pytestmark = pytest.mark.live

KEYS = {f"web-{number:05d}" for number in range(4)}
STARTED = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])


def test_what_changes_is_made_again_and_a_killed_server_completes_it(sqlite: Storage) -> None:
    """Every process dies in the middle of the run; the next server finds out, and makes it again, once."""
    storage = sqlite
    make_shards(storage.raw, members=4, pdf=0, samples=2)
    bad = storage.raw / "web-00003.tar"
    whole = bad.read_bytes()
    bad.write_bytes(BROKEN)
    server = storage.dev(MM_AUTOMATION="all")
    assert run("run", **server.environment).returncode == 1
    assert storage.tars() == KEYS - {bad.stem}
    bad.write_bytes(whole)
    (storage.raw / "web-00002.tar").unlink()
    make_shards(storage.raw, members=3, pdf=0, samples=2, seed="other")
    with server as dev:
        dev.wait_for(lambda instance: instance.get_runs(STARTED), SECONDS, "the run")
        for pid in dev.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert storage.tars() != KEYS
    with storage.dev(MM_AUTOMATION="all") as dev:
        titles = dev.wait_for(ended(1), SECONDS, "the backfill whose server was killed")
        assert titles[0] == "2 shards: 1 the raw shard has changed, 1 failed before"
        for asset in ASSETS:
            assert set(dev.partitions(asset)["materialized"]) == KEYS
        in_parquet, in_table = storage.rows()
        assert in_parquet == in_table and in_parquet.keys() == KEYS, "nothing is lost, nothing is there twice"
        with dev.instance() as instance:
            assert [each.status.value for each in instance.get_runs(limit=2)] == ["SUCCESS", "FAILURE"]
