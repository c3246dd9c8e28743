"""Backfills that are launched without a click, and the partitions that unfinished ones will make.

`DueBackfills` is the one way in which sensor and schedule have shards made.

Dagster 1.13.27 lets only its UI launch a backfill by documented means: `PartitionBackfill` and `add_backfill`
are what the UI's own mutation calls. Canary: `mm_assets_tests/automation/test_backfills.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

from mm_assets.automation.due_shards import FAILED, DueShards, due_shards, versions_of_partitions
from mm_assets.formats.raw_shards import Listing
from mm_assets.graph.dagster_internals import SHARDS, chunks, keys_of_run
from mm_assets.graph.instance_queries import fail_lost_runs
from mm_assets.model.errors import counted

# What has started a run or a backfill, and why: tags. The UI shows them, and no title of a backfill.
STARTED_BY = "mm_assets/started_by"
WHY = "mm_assets/why"


def launch_backfill(
    instance: dg.DagsterInstance,
    asset_graph: AssetGraph,
    assets: Sequence[dg.AssetKey],
    keys: Sequence[str],
    why: str,
    started_by: str,
) -> str:
    """Have the daemon make partitions of these assets, in runs of neighbouring shards.

    Args:
        why: its title; and, as `started_by`, the value of a tag on the backfill and its runs.

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
            tags={STARTED_BY: started_by, WHY: why},
            dynamic_partitions_store=instance,
            partitions_by_assets=[
                PartitionsByAssetSelector(asset_key=asset, partitions=selector) for asset in assets
            ],
            title=why,
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


_NAMED = 3  # reasons in a title
_LATEST_RUNS = 100  # more are not created while somebody looks for due shards


@dataclass(frozen=True)
class DueBackfills:
    """What is due of the raw shards that have a partition, without what is in progress.

    Args:
        versions: of all raw shards that have a partition.
        latest_run: storage id of the latest run when the search began.
    """

    due: DueShards
    versions: Mapping[str, str]
    asset_graph: AssetGraph
    latest_run: int = 0

    @classmethod
    def find(cls, instance: dg.DagsterInstance, asset_graph: AssetGraph, listing: Listing) -> DueBackfills:
        """Return what is due now; partitions that a run or a backfill is about to make are not."""
        fail_lost_runs(instance)  # their shards would be in progress for ever
        latest_run = max((record.storage_id for record in instance.get_run_records(limit=1)), default=0)
        versions = versions_of_partitions(instance, listing)
        # Backfills first: one that ends in between has then made what was due.
        unfinished = unfinished_partitions(instance, asset_graph)
        found = due_shards(instance, asset_graph, versions)
        busy = {
            key for found_by in (found.in_progress, unfinished) for keys in found_by.values() for key in keys
        }
        return cls(found.restricted(set(versions) - busy), versions, asset_graph, latest_run)

    def launch(self, instance: dg.DagsterInstance, chosen: DueShards, started_by: str) -> list[str]:
        """Launch a backfill for each set of assets that is due in some shards; return a line for each.

        Shards that somebody else has taken since the search are left out.
        """
        if chosen.partitions():
            chosen = chosen.restricted(set(chosen.partitions()) - self._taken_since(instance))
        lines = []
        for assets, keys in chosen.by_assets().items():
            why = f"{counted(len(keys), 'shard')}: {_reasons(chosen, keys)}"
            backfill = launch_backfill(instance, self.asset_graph, assets, keys, why, started_by)
            lines.append(f"backfill {backfill} of {why}")
        return lines

    def _taken_since(self, instance: dg.DagsterInstance) -> set[str]:
        """Return the partitions of runs that were created since the search, and of unfinished backfills."""
        records = instance.get_run_records(limit=_LATEST_RUNS)
        runs = [record.dagster_run for record in records if record.storage_id > self.latest_run]
        taken = {key for run in runs for key in keys_of_run(run, SHARDS, instance)}
        return taken.union(*unfinished_partitions(instance, self.asset_graph).values())


def _reasons(chosen: DueShards, keys: Sequence[str]) -> str:
    """Return the reasons for these shards in the first asset that each is due in."""
    counts: dict[str, int] = {}
    seen: set[str] = set()
    wanted = set(keys)
    for due in chosen.by_asset.values():
        for key, why in due.items():
            if key in wanted and key not in seen:
                seen.add(key)
                reason = "failed before" if why.kind == FAILED else why.reason
                counts[reason] = counts.get(reason, 0) + 1
    most = sorted(counts.items(), key=lambda found: -found[1])[:_NAMED]
    return ", ".join(reason if len(counts) == 1 else f"{count} {reason}" for reason, count in most)
