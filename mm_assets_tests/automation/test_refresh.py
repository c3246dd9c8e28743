"""The job `refresh`: backfills of what is missing, failed or stale, and of nothing else."""

from pathlib import Path

from mm_assets_tests.automation.conftest import Operated
from mm_assets_tests.graph.deployment import ASSETS


def test_missing_failed_and_stale_shards_are_made(operated: Operated) -> None:
    Path(operated.raw, "b.tar").write_bytes(b"no tar" * 100)
    assert not operated.run().success
    operated.shard("c", 2)
    operated.shard("e")
    operated.tick(name="new_shards")
    assert operated.run_job("refresh")
    assert operated.backfills() == [("schedule refresh", {asset: ["b", "c", "e"] for asset in ASSETS})]
    assert operated.run_job("refresh")
    assert len(operated.backfills()) == 1, "the first one has not ended"


def test_of_what_is_up_to_date_nothing_is_made(operated: Operated) -> None:
    assert operated.run().success
    assert operated.run_job("refresh")
    assert operated.backfills() == []
