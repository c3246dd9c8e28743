"""Dagster's own staleness works per shard: one changed raw shard makes one shard stale, step by step down the
graph.
"""

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from mm_assets_tests.graph.io_manager.conftest import Toy


def stale(deployment: Toy, asset: str, keys: list[str]) -> dict[str, str]:
    graph = deployment.definitions().resolve_asset_graph()
    resolver = CachingStaleStatusResolver(
        deployment.instance, graph, LoadingContextForTest(deployment.instance)
    )
    found = {}
    for key in keys:
        causes = [cause.reason for cause in resolver.get_stale_causes(dg.AssetKey(asset), key)]
        found[key] = ", ".join([resolver.get_status(dg.AssetKey(asset), key).value, *causes])
    return found


def test_changed_raw_shard_makes_exactly_its_shards_stale(deployment: Toy) -> None:
    keys = deployment.shards(4)
    assert deployment.run("two", "k01", "k04").success
    fresh = dict.fromkeys(keys, "FRESH")
    assert stale(deployment, "curated", keys) == stale(deployment, "scores", keys) == fresh

    deployment.shard("k03", "new text\n")
    assert deployment.run("observe").success
    new_data = "STALE, has a new dependency data version"
    assert stale(deployment, "curated", keys) == fresh | {"k03": new_data}
    assert stale(deployment, "scores", keys) == fresh  # its own parent has not changed yet

    assert deployment.run("two", "k03", asset_selection=[dg.AssetKey("curated")]).success
    assert stale(deployment, "curated", keys) == fresh
    assert stale(deployment, "scores", keys) == fresh | {"k03": new_data}
    assert deployment.run("two", "k01", "k04").success
    assert stale(deployment, "scores", keys) == fresh


def test_work_with_equal_result_leaves_downstream_fresh(deployment: Toy) -> None:
    keys = deployment.shards(2)
    assert deployment.run("two", "k01", "k02").success
    deployment.shard(
        "k01", (deployment.raw / "k01.txt").read_text().upper()
    )  # the step makes it upper case anyway
    assert deployment.run("two", "k01", asset_selection=[dg.AssetKey("curated")]).success
    assert (
        stale(deployment, "curated", keys)
        == stale(deployment, "scores", keys)
        == dict.fromkeys(keys, "FRESH")
    )
