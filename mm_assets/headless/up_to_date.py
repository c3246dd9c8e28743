"""Shards that need no run: nothing in them is due, and all outputs are there as published and proven.

What one shard decides of another (who keeps a sample id, the types of columns) is not asked again: nothing
was made or retired since a run of all shards saw to it. That run is noted in the instance's key-value store.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from mm_assets.accounting.file_digests import shards_with_problems
from mm_assets.accounting.outputs import BY_ASSET
from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.accounting.retirement import RETIRED
from mm_assets.accounting.stated_partitions import stated_partitions
from mm_assets.automation.due_shard_finder import DueShardFinder
from mm_assets.automation.due_shards import STALE, Due
from mm_assets.automation.partition_events import latest_versions
from mm_assets.formats.raw_shards import Listing
from mm_assets.formats.storage import join
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.proof_resource import Prover
from mm_assets.io_managers.shards import digest
from mm_assets.partitions import SHARDS

_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION
_LAST_WHOLE_RUN = "mm_assets/last_whole_run"

Records = Mapping[str, Mapping[str, ShardRecord]]  # asset -> partition -> record


def note_whole_run(instance: dg.DagsterInstance, root: str, listing: Listing) -> None:
    """Note that all shards went through all assets, and none failed."""
    latest = instance.event_log_storage.get_maximum_record_id() or 0
    value = json.dumps([latest, _shards(instance, root, listing)])
    instance.run_storage.set_cursor_values({_LAST_WHOLE_RUN: value})


def _shards(instance: dg.DagsterInstance, root: str, listing: Listing) -> str:
    """Return a digest of the shards that there are, and were."""
    made = instance.get_dynamic_partitions(str(SHARDS.name))
    return digest([sorted(listing), sorted(made), stated_partitions(join(root, "ledger", RETIRED), ".json")])


def up_to_date_records(
    instance: dg.DagsterInstance, definitions: dg.Definitions, resources: Mapping[str, Any], listing: Listing
) -> Records | None:
    """Return the records of all shards in all assets; None if a run has anything to do.

    It sees what a run of all shards sees: also outputs that somebody has removed or changed. No output is
    read, but for the small files of its ledger. Nothing is written but index files that are not as they were.
    """
    prover: Prover = resources["prover"]
    noted = instance.run_storage.get_cursor_values({_LAST_WHOLE_RUN}).get(_LAST_WHOLE_RUN)
    latest, shards = json.loads(noted) if noted else (0, "")
    if shards != _shards(instance, prover.root, listing):
        return None
    graph = definitions.resolve_asset_graph()
    specs = [spec for spec in definitions.resolve_all_asset_specs() if spec.partitions_def]
    finder = DueShardFinder(instance, specs, {key: shard.version for key, shard in listing.items()})
    due = finder.find()
    if due.partitions() or any(due.in_progress.values()) or finder.latest_materialization() > latest:
        return None
    found: dict[str, Mapping[str, ShardRecord]] = {}
    for asset in due.by_asset:
        name, manager = asset.to_user_string(), _manager(graph, resources, asset)
        made = _as_published(manager, name, latest_versions(instance, asset, _MATERIALIZED), list(listing))
        if len(made) < len(listing) or (name in BY_ASSET and len(prover.proven(name, made)) < len(made)):
            return None
        manager.repair_derived()
        found[name] = made
    return found


def altered_shards(
    instance: dg.DagsterInstance,
    definitions: dg.Definitions,
    resources: Mapping[str, Any],
    assets: Collection[dg.AssetKey],
    keys: Collection[str],
) -> dict[dg.AssetKey, dict[str, Due]]:
    """Return the shards, by asset, whose outputs somebody has removed or changed."""
    graph = definitions.resolve_asset_graph()
    found: dict[dg.AssetKey, dict[str, Due]] = {}
    for asset in assets:
        versions = latest_versions(instance, asset, _MATERIALIZED)
        made = [key for key in keys if key in versions]
        intact = _as_published(_manager(graph, resources, asset), asset.to_user_string(), versions, made)
        found[asset] = {key: Due(STALE, "not as it was published") for key in made if key not in intact}
    return found


def _manager(graph: AssetGraph, resources: Mapping[str, Any], asset: dg.AssetKey) -> ShardIOManager:
    made_in = graph.get(asset).assets_def
    manager: ShardIOManager = resources[made_in.get_io_manager_key_for_asset_key(asset)]
    return manager


def _as_published(
    manager: ShardIOManager, asset: str, versions: Mapping[str, str], keys: Sequence[str]
) -> Mapping[str, ShardRecord]:
    """Return the records of the shards that have one of their version, and all that it tells of.

    Args:
        versions: what was materialized last, by partition.
    """
    found = ShardRecords(manager.root).read(asset, keys)
    records = {key: record for key, record in found.items() if record.version == versions.get(key)}
    problems = shards_with_problems(manager.root, records.values())
    return manager.intact_records(asset, {key: records[key] for key in records if key not in problems})
