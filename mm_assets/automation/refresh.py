"""Job `refresh`: backfills of what is missing, failed or stale."""

import dagster as dg

from mm_assets.automation.due_backfills import DueBackfills
from mm_assets.resources.raw_shards import RawShards


@dg.op(description="Launches backfills of all shards that are missing, failed or stale.")
def launch_due_backfills(context: dg.OpExecutionContext, raw: RawShards) -> None:
    listing = raw.listing()
    found = DueBackfills.find(context.instance, context.repository_def.asset_graph, listing)
    for line in found.launch(context.instance, found.due, "schedule refresh") or ["nothing is due"]:
        context.log.info(line)


@dg.job(description="Have everything made that is missing, failed or stale.")
def refresh() -> None:
    launch_due_backfills()
