"""Job `refresh`: backfills of what is missing, failed or stale."""

import time

import dagster as dg

from mm_assets.automation.due_backfills import DueBackfills
from mm_assets.formats.raw_shards import Listing
from mm_assets.resources.raw_shards import RawShards

LOOK_AGAIN_SECONDS = 30


@dg.op(description="Launches backfills of all shards that are missing, failed or stale.")
def launch_due_backfills(context: dg.OpExecutionContext, raw: RawShards) -> None:
    found = DueBackfills.find(context.instance, context.repository_def.asset_graph, raw.listing())
    due = found.due
    if due.partitions():  # one that is being uploaded is another at the next look
        time.sleep(LOOK_AGAIN_SECONDS)
        listing = raw.listing()
        complete = {key for key, version in found.versions.items() if _version(listing, key) == version}
        due = due.restricted(complete)
    for line in found.launch(context.instance, due, "schedule refresh") or ["nothing is due"]:
        context.log.info(line)


def _version(listing: Listing, key: str) -> str | None:
    return listing[key].version if key in listing else None


@dg.job(description="Have everything made that is missing, failed or stale.")
def refresh() -> None:
    launch_due_backfills()
