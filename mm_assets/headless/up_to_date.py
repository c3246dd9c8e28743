"""Shards that need no run: nothing in them is due, and all outputs are there as published and proven.

What one shard decides of another (who keeps a sample id, the types of columns) is not asked again: nothing
was made or retired since a run of all shards saw to it. That run is noted in the instance's key-value store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from mm_assets.accounting.file_digests import shards_with_problems
from mm_assets.accounting.outputs import BY_ASSET
from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.accounting.retirement import RETIRED
from mm_assets.accounting.stated_partitions import stated_partitions
from mm_assets.automation.due_shard_finder import DueShardFinder
from mm_assets.automation.partition_events import latest_versions
from mm_assets.formats.raw_shards import Listing
from mm_assets.formats.storage import join
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.proof_resource import Prover
from mm_assets.io_managers.shards import digest
from mm_assets.partitions import SHARDS

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
    read, but for the small files of its ledger, and nothing is written.
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
        name = asset.to_user_string()
        manager: ShardIOManager = resources[
            graph.get(asset).assets_def.get_io_manager_key_for_asset_key(asset)
        ]
        made = _as_published(instance, manager, asset, list(listing))
        if made is None or (name in BY_ASSET and len(prover.proven(name, made)) < len(made)):
            return None
        found[name] = made
    return found


def _as_published(
    instance: dg.DagsterInstance, manager: ShardIOManager, asset: dg.AssetKey, keys: Sequence[str]
) -> Mapping[str, ShardRecord] | None:
    """Return the records of the shards of an asset; None unless each has one, and all that it tells of."""
    name = asset.to_user_string()
    versions = latest_versions(instance, asset, dg.DagsterEventType.ASSET_MATERIALIZATION)
    records = ShardRecords(manager.root).read(name, keys)
    if any(key not in records or records[key].version != versions.get(key) for key in keys):
        return None
    if shards_with_problems(manager.root, records.values()):
        return None
    intact = manager.intact_records(name, records)
    return intact if len(intact) == len(keys) else None
