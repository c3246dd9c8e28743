"""Backfills that are launched without a click, and the partitions that unfinished ones will make.

Dagster 1.13.27 lets only its UI launch a backfill by documented means: `PartitionBackfill` and `add_backfill`
are what the UI's own mutation calls. Canary: `mm_assets_tests/automation/test_backfills.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.selector import (
    PartitionRangeSelector,
    PartitionsByAssetSelector,
    PartitionsSelector,
)
from dagster._core.execution.backfill import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)
from dagster._core.utils import make_new_backfill_id
from dagster._time import get_current_timestamp

from mm_assets.partitions import SHARDS, chunks

# What has started a run or a backfill: a tag, shown in the UI.
STARTED_BY = "mm_assets/started_by"


def launch_backfill(
    instance: dg.DagsterInstance,
    asset_graph: AssetGraph,
    assets: Sequence[dg.AssetKey],
    keys: Sequence[str],
    title: str,
    started_by: str,
) -> str:
    """Have the daemon make partitions of these assets, in runs of neighbouring shards.

    Args:
        title: its name in the UI.
        started_by: value of the tag on the backfill and its runs.

    Returns:
        The backfill's id.
    """
    order = list(instance.get_dynamic_partitions(str(SHARDS.name)))
    ranges = [PartitionRangeSelector(run[0], run[-1]) for run in chunks(keys, order, size=len(order) or 1)]
    selector = PartitionsSelector(ranges)
    backfill_id = make_new_backfill_id()
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        backfill = PartitionBackfill.from_partitions_by_assets(
            backfill_id=backfill_id,
            asset_graph=asset_graph,
            backfill_timestamp=get_current_timestamp(),
            tags={STARTED_BY: started_by},
            dynamic_partitions_store=instance,
            partitions_by_assets=[
                PartitionsByAssetSelector(asset_key=asset, partitions=selector) for asset in assets
            ],
            title=title,
            description=None,
            run_config=None,
        )
    instance.add_backfill(backfill)
    return backfill_id


def unfinished_backfills(instance: dg.DagsterInstance) -> Sequence[PartitionBackfill]:
    """Return the backfills that have been launched and have not ended, whoever launched them."""
    statuses = [status for status in BulkActionStatus if status not in BULK_ACTION_TERMINAL_STATUSES]
    return instance.get_backfills(filters=BulkActionsFilter(statuses=statuses))


def unfinished_partitions(
    instance: dg.DagsterInstance, asset_graph: AssetGraph
) -> Mapping[dg.AssetKey, set[str]]:
    """Return what unfinished backfills target, whoever launched them, by asset."""
    found: dict[dg.AssetKey, set[str]] = {}
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        for backfill in unfinished_backfills(instance):
            if not backfill.is_asset_backfill:
                continue
            target = backfill.get_asset_backfill_data(asset_graph).target_subset
            for asset, subset in target.partitions_subsets_by_asset_key.items():
                found.setdefault(asset, set()).update(subset.get_partition_keys())
    return found
