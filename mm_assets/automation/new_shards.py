"""Sensor for new raw shards."""

import dagster as dg

from mm_assets.formats.error_lines import error_line
from mm_assets.partitions import SHARDS
from mm_assets.resources.raw_shards import RawShards


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Adds a partition for every raw shard that has none yet.",
)
def new_shards(context: dg.SensorEvaluationContext, raw: RawShards) -> dg.SensorResult | dg.SkipReason:
    """Add a partition for every raw shard that has none yet."""
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
    if not new:
        return dg.SkipReason("; ".join([f"all {len(listed)} raw shards are known", *listed.unmatched]))
    return dg.SensorResult(dynamic_partitions_requests=[SHARDS.build_add_request(new)])
