"""Declared checks have one result for each shard, and a blocking one holds back its shard alone."""

import dagster as dg
import pytest

from mm_assets.graph.dagster_internals import SHARDS
from mm_assets_tests.automation.alerts.event_writer import Writer
from mm_assets_tests.graph.io_manager import toy, toy_job
from mm_assets_tests.graph.io_manager.conftest import Toy

LONG = "a line that is longer than twenty characters\n"


def results(run: dg.ExecuteInProcessResult, asset: str, name: str) -> dict[str | None, bool]:
    found = [e for e in run.get_asset_check_evaluations() if e.asset_check_key == toy.check_key(asset, name)]
    assert len({e.partition for e in found}) == len(found), "one result for each shard, and one over all"
    return {e.partition: e.passed for e in found}


def test_every_shard_has_results_of_its_own(deployment: Toy) -> None:
    deployment.shards(3)
    deployment.shard("k02", LONG)
    run = deployment.run("two", "k01", "k03")
    assert run.success
    assert results(run, "curated", "not_empty") == {"k01": True, "k02": True, "k03": True, None: True}
    assert results(run, "curated", "short_lines") == {"k01": True, "k02": False, "k03": True, None: False}
    assert results(run, "curated", "landed") == {None: True}
    by_name = {(e.check_name, e.partition): e for e in run.get_asset_check_evaluations()}
    assert by_name["not_empty", "k02"].metadata == {"lines": dg.MetadataValue.int(1)}
    assert by_name["not_empty", "k02"].blocking and not by_name["short_lines", "k02"].blocking
    assert by_name["short_lines", "k02"].severity == dg.AssetCheckSeverity.WARN


def test_dagster_shows_the_results_per_partition(deployment: Toy) -> None:
    """No row stays planned; the one over all partitions came last."""
    keys = deployment.shards(3)
    deployment.shard("k02", LONG)
    storage = deployment.instance.event_log_storage
    for _ in range(2):  # the second run finds everything unchanged
        deployment.run("two", "k01", "k03")
        key = toy.check_key("curated", "short_lines")
        latest = storage.get_latest_asset_check_execution_by_key([key])[key]
        assert (latest.partition, latest.status.name) == (None, "FAILED")
        rows = {
            row.partition_key: row
            for row in storage.get_asset_check_partition_info([key])
            if row.partition_key
        }
        assert sorted(rows) == keys and all(row.is_current for row in rows.values())
        assert {k: row.latest_execution_status.name for k, row in rows.items()} == {
            "k01": "SUCCEEDED", "k02": "FAILED", "k03": "SUCCEEDED",
        }  # fmt: skip


def test_what_a_killed_run_had_planned_is_withdrawn_once_its_shards_fail(deployment: Toy) -> None:
    """Dagster shows a planned evaluation of a failed run as failed. What another run has planned stays."""
    deployment.shards(3)
    assert deployment.run("two", "k01", "k03").success
    writer = Writer(deployment.instance)
    key = toy.check_key("curated", "short_lines")

    def outcomes() -> dict[str, set[object]]:
        storage = deployment.instance.event_log_storage
        with dg.partition_loading_context(dynamic_partitions_store=deployment.instance):
            state = storage.get_asset_check_state([(key, SHARDS)])[key]
            return {
                status.value: set(subset.subset_value.get_partition_keys())
                for status, subset in state.subsets.items()
                if not subset.is_empty
            }

    killed, waiting = writer.begin_run(), writer.begin_run()
    writer.planned_check(killed, "curated", "short_lines", ["k01", "k02"])
    writer.planned_check(waiting, "curated", "short_lines", ["k03"])
    writer.end_run(killed, False)
    assert outcomes() == {"EXECUTION_FAILED": {"k01", "k02"}, "IN_PROGRESS": {"k03"}}
    for name in ("k02", "k03"):
        deployment.shard(name, "RAISE")
    assert not deployment.run("two", "k01", "k03").success
    assert outcomes() == {"SUCCEEDED": {"k01", "k02"}, "IN_PROGRESS": {"k03"}}


def test_blocking_check_withholds_its_shard_only(deployment: Toy) -> None:
    keys = deployment.shards(3)
    (deployment.raw / "k02.txt").write_text("")
    run = deployment.run("two", "k01", "k03")
    assert not run.success
    assert results(run, "curated", "not_empty") == {"k01": True, "k02": False, "k03": True, None: False}
    assert deployment.landed("curated", run) == deployment.landed("scores", run) == ["k01", "k03"]
    assert deployment.status("curated", keys) == {
        "k01": "MATERIALIZED",
        "k02": "FAILED",
        "k03": "MATERIALIZED",
    }
    assert not (deployment.root / "curated" / "k02.out").exists()
    assert "shard 'k02' of curated: blocking check failed: not_empty" in deployment.log(run)


def test_blocked_shard_keeps_its_published_version(deployment: Toy) -> None:
    deployment.shards(1)
    assert deployment.run("two", "k01").success
    published = (deployment.root / "curated" / "k01.out").read_text()
    (deployment.raw / "k01.txt").write_text("")
    assert not deployment.run("two", "k01").success
    assert (deployment.root / "curated" / "k01.out").read_text() == published


def test_worker_that_publishes_in_spite_of_a_blocking_check_is_told(
    deployment: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.shards(1)
    (deployment.raw / "k01.txt").write_text("")
    monkeypatch.setattr(toy.ToyIOManager, "run_job", staticmethod(toy_job.run_unblocked))
    run = deployment.run("two", "k01")
    assert deployment.landed("curated", run) == []
    assert deployment.log(run)[0] == (
        "shard 'k01' of curated: blocking check failed: not_empty, but run_job published the shard"
    )
