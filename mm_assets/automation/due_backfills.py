"""Backfills of what is due: the one way in which the sensor and the schedule have shards made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from mm_assets.automation.backfills import launch_backfill, unfinished_partitions
from mm_assets.automation.due_shard_finder import due_shards, versions_of_partitions
from mm_assets.automation.due_shards import FAILED, DueShards
from mm_assets.formats.raw_shards import Listing
from mm_assets.interleaved.counted import counted
from mm_assets.io_managers.lost_runs import fail_lost_runs

_NAMED = 3  # reasons in a title


@dataclass(frozen=True)
class DueBackfills:
    """What is due of the raw shards that have a partition, without what is in progress.

    Args:
        versions: of all raw shards that have a partition.
    """

    due: DueShards
    versions: Mapping[str, str]
    asset_graph: AssetGraph

    @classmethod
    def find(cls, instance: dg.DagsterInstance, asset_graph: AssetGraph, listing: Listing) -> DueBackfills:
        """Return what is due now; partitions that a run or a backfill is about to make are not."""
        fail_lost_runs(instance)  # their shards would be in progress for ever
        versions = versions_of_partitions(instance, listing)
        # Backfills first: one that ends in between has then made what was due.
        unfinished = unfinished_partitions(instance, asset_graph)
        found = due_shards(instance, asset_graph, versions)
        busy = {
            key for found_by in (found.in_progress, unfinished) for keys in found_by.values() for key in keys
        }
        return cls(found.restricted(set(versions) - busy), versions, asset_graph)

    def launch(self, instance: dg.DagsterInstance, chosen: DueShards, started_by: str) -> list[str]:
        """Launch a backfill for each set of assets that is due in some shards; return a line for each."""
        lines = []
        for assets, keys in chosen.by_assets().items():
            title = f"{counted(len(keys), 'shard')}: {_reasons(chosen, keys)}"
            backfill = launch_backfill(instance, self.asset_graph, assets, keys, title, started_by)
            lines.append(f"backfill {backfill} of {title}")
        return lines


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
