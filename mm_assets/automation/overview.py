"""Sensor `overview`: renews the asset of the same name when something has been made."""

import json
import time
from collections.abc import Collection, Sequence
from typing import Any

import dagster as dg

from mm_assets.accounting.outputs import CURATED, FILTERED
from mm_assets.assets.overview import OVERVIEW
from mm_assets.io_managers import events
from mm_assets.io_managers.instance_queries import unfinished_runs
from mm_assets.io_managers.metadata import metadata_values
from mm_assets.partitions import SHARDS
from mm_assets.resources.maintained_storage import MaintainedStorage

_SCORES = "image_scores"
_SHOWN = [dg.AssetKey(name) for name in (CURATED.asset, _SCORES, FILTERED.asset)]
# While a long backfill is going on. Reading 10,000 shards takes seconds.
_SECONDS_BETWEEN = 600
# Of the events of all shards only this is kept in memory, and pictures only of some shards.
_COUNTED = frozenset({"samples", "texts", "images", "filtered", "quarantined", events.URI})
_PICTURES = frozenset({"preview", "preview_dropped"})
_CANDIDATES = 25  # shards for each strip of pictures: not every one has any
_AT_ONCE = 1000


@dg.sensor(
    name="overview",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Renews the asset overview after each backfill, and every 10 minutes during a long one.",
)
def overview_sensor(
    context: dg.SensorEvaluationContext, maintained: MaintainedStorage
) -> dg.SensorResult | dg.SkipReason:
    """Renew the overview if a shard was made or retired since the last one."""
    seen = json.loads(context.cursor or "{}")
    state = _state(context.instance)
    if state == seen.get("state"):
        return dg.SkipReason("nothing was made since the last overview")
    waits = time.time() < seen.get("time", 0) + _SECONDS_BETWEEN
    if waits and unfinished_runs(context.instance, limit=1):
        return dg.SkipReason("runs are going on; the overview is renewed when they have ended")
    cursor = json.dumps({"state": state, "time": time.time()})
    made = overview_event(context.instance, maintained.root)
    if made is None:
        context.update_cursor(cursor)
        return dg.SkipReason("no shard was made yet")
    return dg.SensorResult(
        asset_events=[made], skip_reason=str(made.metadata["summary"].value), cursor=cursor
    )


def overview_event(instance: dg.DagsterInstance, root: str) -> dg.AssetMaterialization | None:
    """Return the overview of all shards as they are now; None if there are none.

    Args:
        root: storage root, with scores and ledger.
    """
    from mm_assets.overview.figures import Figures, evenly_spread
    from mm_assets.overview.measures import measure
    from mm_assets.overview.page import STRIPS, description, metadata

    keys = instance.get_dynamic_partitions(str(SHARDS.name))
    pictured = set(evenly_spread(keys, STRIPS * _CANDIDATES))
    curated, scores, filtered = (_shown(instance, asset, keys, pictured) for asset in _SHOWN)
    if not filtered:
        return None
    figures = Figures.of(curated, filtered, STRIPS, raw_shards=len(keys))
    measures = measure(
        root,
        {
            key: str(told[events.URI])
            for key, told in scores.items()
            if key in filtered and events.URI in told
        },
        {key: int(told["samples"]) for key, told in curated.items()},
    )
    return dg.AssetMaterialization(
        OVERVIEW,
        description=description(figures),
        metadata=metadata_values(metadata(figures, measures)),
    )


def _shown(
    instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Sequence[str], pictured: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return of the latest event of each shard what the overview is made from, with pictures of some."""
    found: dict[str, dict[str, Any]] = {}
    for start in range(0, len(keys), _AT_ONCE):
        batch = keys[start : start + _AT_ONCE]
        for key, latest in events.latest_materializations(instance, asset, batch).items():
            names = _COUNTED | _PICTURES if key in pictured else _COUNTED
            found[key] = {name: value for name, value in latest.metadata.items() if name in names}
    return found


def _state(instance: dg.DagsterInstance) -> list[int]:
    """Return numbers that change when a shard is made, or retired."""
    ids = {
        record.asset_entry.asset_key: record.asset_entry.last_materialization_storage_id or 0
        for record in instance.get_asset_records(_SHOWN)
    }
    partitions = len(instance.get_dynamic_partitions(str(SHARDS.name)))
    return [partitions, *(ids.get(asset, 0) for asset in _SHOWN)]
