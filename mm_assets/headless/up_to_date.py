"""Shards that need no run: nothing in them is due, and all outputs are there as published and proven.

What one shard decides of another (who keeps a sample id, the types of columns) is not asked again: nothing
was made or retired since a run of all shards saw to it. That run is noted in the instance's key-value store.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from mm_assets import __version__
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
from mm_assets.io_managers.planned_jobs import has_passed
from mm_assets.io_managers.shards import digest
from mm_assets.partitions import SHARDS

_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION
_LAST_WHOLE_RUN = "mm_assets/last_whole_run"

Records = Mapping[str, Mapping[str, ShardRecord]]  # asset -> partition -> record


def note_whole_run(
    instance: dg.DagsterInstance, definitions: dg.Definitions, resources: Mapping[str, Any], listing: Listing
) -> None:
    """Note that all shards went through all assets, and none failed."""
    latest = instance.event_log_storage.get_maximum_record_id() or 0
    root = resources["prover"].root
    assets = [spec.key.to_user_string() for spec in _specs(definitions) if spec.deps]
    records = {asset: ShardRecords(root).read(asset, list(listing)) for asset in assets}
    value = json.dumps([latest, _state(instance, root, listing, records)])
    instance.run_storage.set_cursor_values({_LAST_WHOLE_RUN: value})


def _state(instance: dg.DagsterInstance, root: str, listing: Listing, records: Records) -> str:
    """Return a digest of the shards that there are, or were, and of what each was made from.

    Somebody else may make shards in the same storage.
    """
    made = instance.get_dynamic_partitions(str(SHARDS.name))
    retired = stated_partitions(join(root, "ledger", RETIRED), ".json")
    recorded = {
        asset: sorted((key, record.fingerprint, record.version) for key, record in by_key.items())
        for asset, by_key in sorted(records.items())
    }
    names = {asset: ShardRecords(root).named(asset) for asset in sorted(records)}
    return digest([root, __version__, sorted(listing), sorted(made), retired, recorded, names])


def _specs(definitions: dg.Definitions) -> list[dg.AssetSpec]:
    return [spec for spec in definitions.resolve_all_asset_specs() if spec.partitions_def]


def up_to_date_records(
    instance: dg.DagsterInstance, definitions: dg.Definitions, resources: Mapping[str, Any], listing: Listing
) -> Records | None:
    """Return the records of all shards in all assets; None if a run has anything to do.

    It sees what a run of all shards sees: also outputs that somebody has removed or changed. No output is
    read, but for the small files of its ledger. Nothing is written but index files and sums of proofs that
    are not as they were.
    """
    try:
        return _up_to_date_records(instance, definitions, resources, listing)
    except (
        OSError,
        ValueError,
    ):  # what cannot be read is for the run: it fails what it concerns, and names it
        return None


def _up_to_date_records(
    instance: dg.DagsterInstance, definitions: dg.Definitions, resources: Mapping[str, Any], listing: Listing
) -> Records | None:
    noted = instance.run_storage.get_cursor_values({_LAST_WHOLE_RUN}).get(_LAST_WHOLE_RUN)
    if not noted:
        return None
    latest, state = json.loads(noted)
    graph, prover = definitions.resolve_asset_graph(), resources["prover"]
    versions = {key: shard.version for key, shard in listing.items()}
    finder = DueShardFinder(instance, _specs(definitions), versions)
    due = finder.find()
    if due.partitions() or any(due.in_progress.values()) or finder.latest_materialization() > latest:
        return None
    found: dict[str, Mapping[str, ShardRecord]] = {}
    for asset in due.by_asset:
        name, manager = asset.to_user_string(), _manager(graph, resources, asset)
        made = _as_published(manager, name, latest_versions(instance, asset, _MATERIALIZED), list(listing))
        if len(made) < len(listing) or not _passes_checks(graph.get(asset).assets_def, asset, made.values()):
            return None
        found[name] = made
    if state != _state(instance, prover.root, listing, found):
        return None
    for asset in due.by_asset:
        _manager(graph, resources, asset).repair_derived()
    proven = all(len(prover.proven(name, found[name])) == len(listing) for name in found if name in BY_ASSET)
    return found if proven else None


def _passes_checks(asset: dg.AssetsDefinition, key: dg.AssetKey, records: Iterable[ShardRecord]) -> bool:
    """Return whether each record has all checks of the asset, and none that keeps its shard back."""
    specs = [spec for spec in asset.check_specs if spec.asset_key == key]
    required = frozenset(spec.name for spec in specs)
    blocking = frozenset(spec.name for spec in specs if spec.blocking)
    return all(has_passed(record, required, blocking) for record in records)


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
