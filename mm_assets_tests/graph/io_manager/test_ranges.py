"""Every way to ask for shards: one key, a range, all of them from an unpartitioned asset, a notebook."""

import dagster as dg
import pytest

from mm_assets.graph import Plan, ShardSet
from mm_assets_tests.graph.io_manager.conftest import Toy


def test_single_partition_run(deployment: Toy) -> None:
    deployment.shards(3)
    run = deployment.run("all", partition_key="k02")
    assert run.success
    for asset in ("curated", "scores", "filtered", "table"):
        assert deployment.landed(asset, run) == ["k02"]


def test_range_follows_the_order_of_registration(deployment: Toy) -> None:
    """Not the alphabet: the key registered between two others is part of their range."""
    for key in ("b", "z", "a", "c"):
        deployment.shard(key)
    run = deployment.run("two", "b", "a")
    assert deployment.landed("scores", run) == ["a", "b", "z"]


def test_range_from_later_to_earlier_does_nothing(deployment: Toy) -> None:
    for key in ("b", "z", "a"):
        deployment.shard(key)
    run = deployment.run("two", "a", "b")
    assert run.success and deployment.landed("curated", run) == []


def test_range_with_an_unknown_end_is_refused(deployment: Toy) -> None:
    deployment.shards(2)
    with pytest.raises(dg.DagsterInvalidInvocationError, match="Nonexistent partition keys"):
        deployment.run("two", "k01", "k99")


def test_unpartitioned_asset_reads_all_that_has_landed(deployment: Toy) -> None:
    deployment.shards(4)
    deployment.shard("k03", "RAISE")
    deployment.run("all", "k01", "k03")
    run = deployment.run("only_summary")
    assert run.success and run.output_for_node("summary") == ["k01", "k02"]


def test_unpartitioned_asset_in_the_run_of_a_chunk(deployment: Toy) -> None:
    """It reads this run's shards and those of earlier runs, but not the old version of one that failed in
    this run.
    """
    deployment.shards(4)
    deployment.run("all", "k01", "k03")
    deployment.shard("k03", "RAISE")
    run = deployment.run("with_summary", "k03", "k04")
    assert run.output_for_node("summary") == ["k01", "k02", "k04"]
    assert deployment.run("only_summary").output_for_node("summary") == ["k01", "k02", "k03", "k04"]


def test_loading_in_a_notebook(deployment: Toy) -> None:
    deployment.shards(3)
    deployment.shard("k02", "RAISE")
    deployment.run("two", "k01", "k03")
    defs = deployment.definitions()
    shards = defs.load_asset_value("scores", partition_key="k03", instance=deployment.instance)
    assert isinstance(shards, ShardSet) and [s.uri for s in shards] == [f"{deployment.root}/scores/k03.out"]
    with defs.get_asset_value_loader(deployment.instance) as loader:
        both = loader.load_asset_value(
            dg.AssetKey("scores"), partition_key_range=dg.PartitionKeyRange("k01", "k03")
        )
    assert isinstance(both, ShardSet)
    assert [s.key for s in both] == ["k01", "k03"] and both.absent == {"k02": "not materialized"}


def test_upstream_that_is_not_partitioned_is_refused(deployment: Toy) -> None:
    @dg.asset(io_manager_key="io_manager")
    def reader(whole: ShardSet) -> None: ...

    whole = dg.AssetSpec("whole").with_io_manager_key("io_manager")
    deployment.config |= {
        "assets": [whole, reader],
        "checks": [],
        "jobs": {"read": dg.AssetSelection.assets("reader")},
    }
    run = deployment.run("read")
    assert "whole is not partitioned by shard" in deployment.failures(run)["reader"]


def test_body_that_returns_no_plan_is_told_so(deployment: Toy) -> None:
    from mm_assets.graph.assets import sharded
    from mm_assets_tests.graph.io_manager.toy import raw_shards

    @sharded(code_version="1")
    def wrong(raw_shards: ShardSet) -> Plan:
        return raw_shards  # type: ignore[return-value]

    deployment.shards(1)
    deployment.config |= {"assets": [raw_shards, wrong], "jobs": {"go": dg.AssetSelection.assets("wrong")}}
    run = deployment.run("go", "k01")
    assert "wrong must return a Plan, not ShardSet" in deployment.failures(run)["wrong"]
