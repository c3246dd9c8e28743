"""What the stock class reads of an instance, without what differs between any two runs: ids and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import dagster as dg

from mm_assets.definitions import SHARDED_ASSETS
from mm_assets_tests.graph.deployment import Deployment

ASSETS = [dg.AssetKey("raw_shards"), *(asset.key for asset in SHARDED_ASSETS)]
_KIND = dg.DagsterEventType


def view(deployment: Deployment) -> dict[str, Any]:
    """What pages, sensors and staleness go by, after any number of runs."""
    instance = deployment.instance
    check_states = deployment.check_states()
    return {
        "check states": check_states,
        "latest": {asset.to_user_string(): _latest(deployment, asset) for asset in ASSETS},
        "tags": {asset.to_user_string(): _versions(instance, asset) for asset in ASSETS},
        "records": _asset_records(instance),
        "unfinished": {asset.to_user_string(): _unfinished(instance, asset) for asset in ASSETS},
        "evaluations": _evaluations(instance, check_states),
    }


def run_view(deployment: Deployment, run_id: str) -> dict[str, Any]:
    """What the pages of one run go by."""
    instance = deployment.instance
    stats = instance.get_run_stats(run_id)
    records = instance.get_records_for_run(run_id).records
    entries = [record.event_log_entry for record in records]
    return {
        "stats": (stats.steps_succeeded, stats.steps_failed, stats.materializations, stats.expectations),
        "steps": {
            step.step_key: (step.status.value if step.status else None)
            for step in instance.get_run_step_stats(run_id)
        },
        "ids ascend": [r.storage_id for r in records] == sorted({r.storage_id for r in records}),
        "times ascend": [e.timestamp for e in entries] == sorted(e.timestamp for e in entries),
        "events": Counter(
            entry.dagster_event.event_type_value if entry.dagster_event else f"log {entry.level}"
            for entry in entries
            if entry.asset_check_evaluation is None
            and entry.dagster_event_type != _KIND.ASSET_MATERIALIZATION_PLANNED  # ours is one for all shards
        ),
        "evaluations": sorted(
            (e.asset_key.to_user_string(), e.check_name, e.partition or "", e.passed)
            for entry in entries
            if (e := entry.asset_check_evaluation) is not None and (e.partition is None or not e.passed)
        ),
        "planned": {asset.to_user_string(): _planned(instance, run_id, asset) for asset in ASSETS},
        "planned assets": instance.get_asset_keys_for_run(run_id, _KIND.ASSET_MATERIALIZATION_PLANNED),
    }


def _planned(instance: dg.DagsterInstance, run_id: str, asset: dg.AssetKey) -> list[tuple[str, str | None]]:
    """By partition and step, what a run has planned of an asset."""
    wanted = dg.EventRecordsFilter(_KIND.ASSET_MATERIALIZATION_PLANNED, asset_key=asset)
    return sorted(
        (str(record.partition_key), record.event_log_entry.step_key)
        for record in instance.get_event_records(wanted)
        if record.run_id == run_id
    )


def _latest(deployment: Deployment, asset: dg.AssetKey) -> dict[str, Any]:
    """By partition, everything that its page shows of its latest materialization or observation."""
    instance = deployment.instance
    kind = _KIND.ASSET_OBSERVATION if asset == ASSETS[0] else _KIND.ASSET_MATERIALIZATION
    fetch = (
        instance.fetch_observations if kind == _KIND.ASSET_OBSERVATION else instance.fetch_materializations
    )
    ids = instance.get_latest_storage_id_by_partition(asset, kind)
    if not ids:
        return {}
    found = {}
    for record in fetch(dg.AssetRecordsFilter(asset, storage_ids=list(ids.values())), limit=1000).records:
        event = record.asset_materialization or record.event_log_entry.asset_observation
        assert event is not None and record.storage_id == ids[record.partition_key]
        found[record.partition_key] = (
            {
                name: value.value.replace(deployment.storage, "") if isinstance(value.value, str) else value
                for name, value in event.metadata.items()
            },
            {name: value for name, value in (event.tags or {}).items() if "pointer" not in name},
            record.event_log_entry.step_key,
            record.event_log_entry.message,
        )
    return found


def _versions(instance: dg.DagsterInstance, asset: dg.AssetKey) -> Any:
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        asset, _KIND.ASSET_MATERIALIZATION, ["dagster/data_version"]
    )
    return {partition: dict(found) for partition, found in tags.items()}


def _asset_records(instance: dg.DagsterInstance) -> dict[str, Any]:
    found = {}
    for record in instance.get_asset_records(ASSETS):
        entry = record.asset_entry
        last = entry.last_materialization_record
        newest = instance.fetch_materializations(entry.asset_key, limit=1).records
        is_newest = [last.storage_id] == [n.storage_id for n in newest] if last is not None else not newest
        found[entry.asset_key.to_user_string()] = (is_newest, entry.last_run_id is not None)
    return found


def _unfinished(instance: dg.DagsterInstance, asset: dg.AssetKey) -> list[str]:
    log = instance.event_log_storage
    return sorted(log.get_latest_asset_partition_materialization_attempts_without_materializations(asset))


def _evaluations(instance: dg.DagsterInstance, checks: Iterable[str]) -> dict[str, Any]:
    """By check and partition, the latest evaluation, with what it says of its materialization.

    Of one that a shard has passed, without metadata that is empty or 0: our classes leave it out.
    """
    found: dict[str, Any] = {}
    latest_of = {
        asset: instance.get_latest_storage_id_by_partition(asset, _KIND.ASSET_MATERIALIZATION)
        for asset in ASSETS
    }
    for name in checks:
        asset, _, check = name.partition(".")
        key = dg.AssetCheckKey(dg.AssetKey(asset), check)
        latest = latest_of[key.asset_key]
        history = instance.event_log_storage.get_asset_check_execution_history(key, limit=1000)
        for record in history:
            place = f"{name} {record.partition}"
            if place in found:
                continue
            evaluation = record.evaluation
            assert isinstance(evaluation, dg.AssetCheckEvaluation), place
            target = evaluation.target_materialization_data
            may_be_left_out = evaluation.passed and record.partition is not None
            found[place] = (
                record.status.value,
                evaluation.passed,
                evaluation.severity,
                evaluation.blocking,
                {
                    name: value.value
                    for name, value in evaluation.metadata.items()
                    if name != "examined_at" and not (may_be_left_out and value.value in ("", [], {}, 0))
                },
                target and record.partition and target.storage_id == latest.get(record.partition),
            )
    return found
