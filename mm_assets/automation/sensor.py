"""Sensor `automation`: shards are made without a click, in backfills of chunked runs.

Not by Dagster's declarative automation: that knows neither the settings that an output depends on nor a shard
that is still being uploaded, asks again for shards that fail for their content, and evaluates seven assets
times all partitions at each tick (docs/decisions/0007-automation.md).
"""

from __future__ import annotations

import base64
import hashlib

import dagster as dg

from mm_assets.automation.due_backfills import DueBackfills
from mm_assets.automation.due_shards import MISSING, STALE, Due
from mm_assets.formats.error_lines import error_line
from mm_assets.interleaved.counted import counted
from mm_assets.resources.raw_shards import RawShards

OFF, NEW, ALL = "off", "new", "all"

# Dagster stores the cursor with each tick, so it has a short digest of each shard that waits. That another
# one has the same, and a shard is taken half uploaded for that, happens once in 10^9 times if 100,000 wait.
_CURSOR = "digests:"
_DIGEST_BYTES = 6


def automation_sensor(mode: str) -> dg.SensorDefinition:
    """Return the sensor.

    Args:
        mode: ``off``: the sensor is stopped; ``new``: it takes shards that were never made; ``all``: also
            stale ones, and failed ones whose raw shard, code or settings have changed since.
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
        before = _seen(context.cursor)
        digests = {key: _digest(key, found.versions[key]) for key in wanted.partitions()}
        # A shard that is being uploaded has another version at the next tick.
        complete = {key for key, digest in digests.items() if digest in before}
        lines = found.launch(context.instance, wanted.restricted(complete), "sensor automation")
        for line in lines:
            context.log.info(line)
        waiting = [digest for key, digest in digests.items() if key not in complete]
        cursor = _CURSOR + base64.b64encode(b"".join(waiting)).decode()
        uploading = (
            counted(len(waiting), "shard waits until it is", "shards wait until they are")
            + " seen unchanged at the next tick"
        )
        reason = "; ".join([*lines, *([uploading] if waiting else [])]) or "nothing is due"
        return dg.SensorResult(skip_reason=reason, cursor=cursor)

    return automation


def _digest(key: str, version: str) -> bytes:
    text = f"{key}\0{version}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()


def _seen(cursor: str | None) -> set[bytes]:
    """Return the digests of a cursor; none of one that another release has written."""
    if not cursor or not cursor.startswith(_CURSOR):
        return set()
    digests = base64.b64decode(cursor.removeprefix(_CURSOR))
    return {digests[start : start + _DIGEST_BYTES] for start in range(0, len(digests), _DIGEST_BYTES)}


def _is_wanted(why: Due, mode: str) -> bool:
    return why.kind == MISSING or (mode == ALL and (why.kind == STALE or why.may_land))
