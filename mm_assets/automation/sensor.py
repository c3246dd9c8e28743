"""Sensor `automation`: shards are made without a click, in backfills of chunked runs.

Not by Dagster's declarative automation: that knows neither the settings that an output depends on nor a shard
that is still being uploaded, asks again for shards that fail for their content, and evaluates seven assets
times all partitions at each tick (docs/decisions/0007-automation.md).
"""

from __future__ import annotations

import json

import dagster as dg

from mm_assets.automation.due_backfills import DueBackfills
from mm_assets.automation.due_shards import MISSING, STALE, Due
from mm_assets.formats.error_lines import error_line
from mm_assets.interleaved.counted import counted
from mm_assets.resources.raw_shards import RawShards

OFF, NEW, ALL = "off", "new", "all"


def automation_sensor(mode: str) -> dg.SensorDefinition:
    """Return the sensor.

    Args:
        mode: ``off`` (the sensor is stopped), ``new``: shards that were never made; ``all``: also stale ones,
        and
            failed ones whose raw shard, code or settings have changed since.
    """

    @dg.sensor(
        name="automation",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.STOPPED if mode == OFF else dg.DefaultSensorStatus.RUNNING,
        description=f"Launches backfills of due shards (MM_AUTOMATION={mode}).",
    )
    def automation(context: dg.SensorEvaluationContext, raw: RawShards) -> dg.SensorResult | dg.SkipReason:
        try:
            listing = raw.listing()
        except (OSError, ValueError) as error:
            context.log.error(line := error_line(error))
            return dg.SkipReason(line)
        assert context.repository_def is not None, "sensors of a code location have one"
        found = DueBackfills.find(context.instance, context.repository_def.asset_graph, listing)
        wanted = found.due.where(lambda why: _is_wanted(why, mode))
        before = json.loads(context.cursor or "{}")
        versions = {key: found.versions[key] for key in wanted.partitions()}
        # A shard that is being uploaded has another version at the next tick.
        complete = {key for key, version in versions.items() if before.get(key) == version}
        lines = found.launch(context.instance, wanted.restricted(complete), "sensor automation")
        for line in lines:
            context.log.info(line)
        waiting = {key: version for key, version in versions.items() if key not in complete}
        cursor = json.dumps(waiting)
        uploading = (
            counted(len(waiting), "shard waits until it is", "shards wait until they are")
            + " seen unchanged at the next tick"
        )
        reason = "; ".join([*lines, *([uploading] if waiting else [])]) or "nothing is due"
        return dg.SensorResult(skip_reason=reason, cursor=cursor)

    return automation


def _is_wanted(why: Due, mode: str) -> bool:
    return why.kind == MISSING or (mode == ALL and (why.kind == STALE or why.may_land))
