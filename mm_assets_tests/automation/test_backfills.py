"""Canary: a backfill that we launch is one as Dagster's UI launches them, and is unfinished until it ends."""

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionStatus

from mm_assets.automation.backfills import unfinished_backfills, unfinished_partitions
from mm_assets.definitions import build_definitions
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets.graph.instance_queries import STARTED_BY, launch_backfill

_ASSETS = [dg.AssetKey("curated_parquet"), dg.AssetKey("final_tars")]


@pytest.fixture(scope="module")
def graph() -> AssetGraph:
    return build_definitions().resolve_asset_graph()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(str(SHARDS.name), ["d", "a", "c", "b", "odd, [name]"])
        yield instance


def _launch(instance: dg.DagsterInstance, graph: AssetGraph, *keys: str) -> str:
    return launch_backfill(instance, graph, _ASSETS, keys, "a title", "a test")


def test_it_targets_these_shards_and_no_neighbour_of_theirs(
    instance: dg.DagsterInstance, graph: AssetGraph
) -> None:
    backfill_id = _launch(instance, graph, "d", "a", "odd, [name]")
    assert unfinished_partitions(instance, graph) == {key: {"d", "a", "odd, [name]"} for key in _ASSETS}
    (backfill,) = unfinished_backfills(instance)
    assert (backfill.backfill_id, backfill.title) == (backfill_id, "a title")
    assert backfill.tags[STARTED_BY] == "a test"
    assert backfill.is_asset_backfill


@pytest.mark.parametrize("status", BulkActionStatus)
def test_it_is_unfinished_until_it_has_ended(
    instance: dg.DagsterInstance, graph: AssetGraph, status: BulkActionStatus
) -> None:
    _launch(instance, graph, "c")
    (backfill,) = instance.get_backfills()
    instance.update_backfill(backfill.with_status(status))
    has_ended = status in BULK_ACTION_TERMINAL_STATUSES
    assert len(unfinished_backfills(instance)) == (0 if has_ended else 1)
    assert unfinished_partitions(instance, graph) == ({} if has_ended else {key: {"c"} for key in _ASSETS})
