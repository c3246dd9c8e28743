"""Jobs that look at all shards at once, from their stored scores, before filters judge any of them.

* Job `statistics`: the statistics that conditions look at.
* Job `duplicates`: the verdicts on duplicates, and the making of the shards that they have changed. The asset
  of the same name shows what was found.
"""

from typing import Any

import dagster as dg

from mm_assets.accounting import statistics_folder
from mm_assets.automation.backfills import launch_backfill
from mm_assets.automation.pending_verdicts import JOB
from mm_assets.filters.duplicates import VerdictIndex
from mm_assets.graph.assets import DUPLICATES, FILTERED_PARQUET
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets.graph.planned_jobs import metadata_values
from mm_assets.graph.resources import FilterThresholds, MaintainedStorage
from mm_assets.model.errors import counted
from mm_assets.view.whole_set import FoundDuplicates, compute_statistics, find_duplicates


@dg.op(
    description="Computes the statistics of the whole set that conditions look at, from the stored scores."
)
def compute_set_statistics(
    context: dg.OpExecutionContext, bounds: FilterThresholds, maintained: MaintainedStorage
) -> None:
    for line in compute_statistics(maintained.root, bounds.active()).lines():
        context.log.info(line)


@dg.job(
    description="Compute the statistics of the whole set anew; filtered shards that they change become stale."
)
def statistics() -> None:
    compute_set_statistics()


@dg.op(
    description="Finds the duplicates in all shards, from the stored scores, and launches what they change."
)
def find_set_duplicates(
    context: dg.OpExecutionContext, bounds: FilterThresholds, maintained: MaintainedStorage
) -> None:
    folder = statistics_folder(maintained.root)
    before = VerdictIndex.read(folder).shards
    found = find_duplicates(maintained.root, bounds.active())
    if not found.found:
        context.log.info("MM_DEDUP_IMAGES and MM_DEDUP_DOCUMENTS are off")
        return
    context.log_event(duplicates_event(found))
    for line in found.lines():
        context.log.info(line)
    known = set(context.instance.get_dynamic_partitions(str(SHARDS.name)))
    # Also those that were made anew and waited for what turned out to be the same verdicts.
    now = VerdictIndex.read(folder).shards
    if keys := [key for key, verdicts in now.items() if key in known and before.get(key) != verdicts]:
        graph = context.repository_def.asset_graph
        made_from = dg.AssetSelection.assets(FILTERED_PARQUET).downstream().resolve(graph)
        assets = sorted(made_from & graph.materializable_asset_keys)
        why = f"{counted(len(keys), 'shard')} with other duplicates"
        context.log.info(
            f"backfill {launch_backfill(context.instance, graph, assets, keys, why, 'job duplicates')}: {why}"
        )


@dg.job(
    name=JOB, description="Find duplicates anew, and have the shards filtered again whose verdicts differ."
)
def duplicates() -> None:
    find_set_duplicates()


def duplicates_event(found: FoundDuplicates) -> dg.AssetMaterialization:
    """Return the event that shows what was found."""
    metadata: dict[str, Any] = {
        "summary": "; ".join(line.strip() for line in found.lines()),
        "shards": found.shards,
        "shards_changed": len(found.changed),
    }
    for each in found.found:
        metadata |= {
            f"{each.what}s": each.items,
            f"{each.what}_copies": each.exact + each.near,
            f"{each.what}_clusters": each.clusters,
            f"largest_of_{each.what}s": {"json": dict(each.largest)},
        }
    return dg.AssetMaterialization(DUPLICATES, metadata=metadata_values(metadata))
