"""Sensor `new_shards`: keeps partitions and versions of the raw shards up to date."""

import dagster as dg

from mm_assets.automation.partition_events import latest_versions
from mm_assets.checks.removed_shards import removed_shards_evaluation
from mm_assets.formats.error_lines import error_line
from mm_assets.formats.raw_shards import Listing
from mm_assets.io_managers.raw import RAW_SHARDS, observation
from mm_assets.partitions import SHARDS
from mm_assets.resources.raw_shards import RawShards

# Observations in one tick; the others follow in the next ones.
_MAX_OBSERVED = 500


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Adds a partition for every new raw shard, and notes raw shards that have changed or are gone."
    ),
)
def new_shards(context: dg.SensorEvaluationContext, raw: RawShards) -> dg.SensorResult | dg.SkipReason:
    """Add a partition for every raw shard that has none yet; note those that have changed or are gone.

    Shards that were never observed are observed by the run that reads them first.
    """
    known = set(context.instance.get_dynamic_partitions(str(SHARDS.name)))
    try:
        listed = raw.listing()
    except (OSError, ValueError) as error:
        line = error_line(error)
        context.log.error(line)
        return dg.SkipReason(line)
    for line in listed.unmatched:
        context.log.warning(line)
    new = [key for key in listed if key not in known]
    changed = _changed(context.instance, listed)
    events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = [
        observation(RAW_SHARDS, key, listed[key]) for key in changed[:_MAX_OBSERVED]
    ]
    # Of an unreachable location nobody knows what is gone.
    removed = [] if listed.unmatched else sorted(known.difference(listed))
    if evaluation := removed_shards_evaluation(context.instance, removed):
        events.append(evaluation)
    told = [f"{len(changed)} raw shards have changed"] if changed else []
    told += [f"{len(removed)} raw shards are gone, such as {removed[0]}"] if removed else []
    if not new and not events:
        told = [f"all {len(listed)} raw shards are known", *told, *listed.unmatched]
        return dg.SkipReason("; ".join(told))
    return dg.SensorResult(
        dynamic_partitions_requests=[SHARDS.build_add_request(new)] if new else [],
        asset_events=events,
        skip_reason=None if new else "; ".join(told),
    )


def _changed(instance: dg.DagsterInstance, listed: Listing) -> list[str]:
    seen = latest_versions(instance, RAW_SHARDS, dg.DagsterEventType.ASSET_OBSERVATION)
    return [key for key, version in seen.items() if key in listed and listed[key].version != version]
