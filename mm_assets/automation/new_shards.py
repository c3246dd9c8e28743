"""Sensor `new_shards`: keeps partitions, versions and the inventory of the raw shards up to date."""

import hashlib

import dagster as dg

from mm_assets.automation.inventory_checks import changed, evaluations
from mm_assets.automation.partition_events import latest_versions
from mm_assets.formats.error_lines import error_line
from mm_assets.formats.raw_shards import Listing
from mm_assets.interleaved.counted import counted
from mm_assets.io_managers.lost_runs import fail_lost_runs
from mm_assets.io_managers.raw import RAW_SHARDS, observation
from mm_assets.partitions import SHARDS
from mm_assets.resources.raw_shards import RawShards

# Observations in one tick; the others follow in the next ones.
_MAX_OBSERVED = 500


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Adds a partition for every new raw shard, and notes those that have changed or are gone.",
)
def new_shards(context: dg.SensorEvaluationContext, raw: RawShards) -> dg.SensorResult | dg.SkipReason:
    """Add a partition for every raw shard that has none yet; note those that have changed or are gone.

    Shards that were never observed are observed by the run that reads them first.
    """
    location = context.code_location_origin
    fail_lost_runs(context.instance, None if location is None else location.location_name)
    known = set(context.instance.get_dynamic_partitions(str(SHARDS.name)))
    try:
        listed = raw.listing()
    except (OSError, ValueError) as error:
        line = error_line(error)
        context.log.error(line)
        return dg.SkipReason(line)
    for line in listed.warnings:
        context.log.warning(line)
    new = [key for key in listed if key not in known]
    replaced = _replaced(context.instance, listed)
    noted: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = [
        observation(RAW_SHARDS, key, listed[key]) for key in replaced[:_MAX_OBSERVED]
    ]
    state = _state(context.instance, listed)
    if context.repository_def is not None and state != context.cursor:
        graph = context.repository_def.asset_graph
        noted += changed(context.instance, evaluations(context.instance, graph, listed))
    told = [
        *([counted(len(replaced), "raw shard has changed", "raw shards have changed")] if replaced else []),
        *(f"{each.asset_check_key.to_user_string()}: {each.metadata['summary'].value or 'passed'}"
          for each in noted if isinstance(each, dg.AssetCheckEvaluation)),
        *listed.unmatched,
    ]  # fmt: skip
    if not new and not noted:
        context.update_cursor(state)
        return dg.SkipReason(
            "; ".join([counted(len(listed), "raw shard is known", "raw shards are known"), *told])
        )
    return dg.SensorResult(
        dynamic_partitions_requests=[SHARDS.build_add_request(new)] if new else [],
        asset_events=noted,
        skip_reason="; ".join([*([counted(len(new), "new raw shard")] if new else []), *told]),
    )


def _replaced(instance: dg.DagsterInstance, listed: Listing) -> list[str]:
    """Return raw shards that have another version than was last observed."""
    seen = latest_versions(instance, RAW_SHARDS, dg.DagsterEventType.ASSET_OBSERVATION)
    return [key for key, version in seen.items() if key in listed and listed[key].version != version]


def _state(instance: dg.DagsterInstance, listed: Listing) -> str:
    """Return a digest that changes whenever an event is logged, or a raw shard comes, goes or changes."""
    digest = hashlib.sha256(str(instance.event_log_storage.get_maximum_record_id()).encode())
    for key in sorted(listed):
        digest.update(f"{key}\0{listed[key].version}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()
