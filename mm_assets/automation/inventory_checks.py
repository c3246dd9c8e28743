"""Checks of what is there: no raw shard is gone, no shard of an asset is stale.

The sensor `new_shards` evaluates them whenever the answer changes. Launched in the UI they are evaluated at
once. In a run that makes assets they do nothing: they would look at all shards for each run of a hundred.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from mm_assets.automation.due_shard_finder import due_shards, versions_of_partitions
from mm_assets.automation.removed_shards import PRESENT, presence, removed_shards
from mm_assets.automation.stale_shards import UP_TO_DATE, staleness
from mm_assets.formats.raw_shards import Listing
from mm_assets.io_managers import events
from mm_assets.partitions import SHARDS
from mm_assets.resources.raw_shards import RawShards


def inventory_checks(assets: Iterable[dg.AssetsDefinition]) -> dg.AssetChecksDefinition:
    """Return the checks of the raw shards and of these assets; they run in one step."""
    keys = [asset.key for asset in assets]
    text = (
        "No shard was made from other raw data, code or settings than there are now. "
        "The job `refresh` makes those that were."
    )

    @dg.multi_asset_check(
        name="inventory",
        can_subset=True,
        specs=[
            dg.AssetCheckSpec(
                PRESENT.name,
                asset=PRESENT.asset_key,
                description="No raw shard whose outputs are there has been removed.",
            ),
            *(dg.AssetCheckSpec(UP_TO_DATE, asset=key, description=text) for key in keys),
        ],
    )
    def inventory(context: dg.AssetCheckExecutionContext, raw: RawShards) -> Iterator[dg.Output[None]]:
        selected = [spec for spec in context.check_specs if spec.key in context.selected_asset_check_keys]
        events.withdraw_planned(context.instance, context.run.run_id, [spec.key for spec in selected])
        if not any(events.makes_asset(context, key) for key in keys):
            chosen = {spec.key for spec in selected}
            graph = context.op_execution_context.repository_def.asset_graph
            # It takes evaluations, too, its annotation does not say so.
            log_event: Callable[[Any], None] = context.op_execution_context.log_event
            for evaluation in evaluations(context.instance, graph, raw.listing()):
                if evaluation.asset_check_key in chosen:
                    log_event(evaluation)
        for spec in selected:  # for an `AssetCheckResult` Dagster would ask for one of each check
            yield dg.Output(None, output_name=spec.get_python_identifier())

    return inventory


def evaluations(
    instance: dg.DagsterInstance, graph: AssetGraph, listing: Listing
) -> list[dg.AssetCheckEvaluation]:
    """Return the outcomes as they are now, without those of assets that a run is working on."""
    known = instance.get_dynamic_partitions(str(SHARDS.name))
    due = due_shards(instance, graph, versions_of_partitions(instance, listing))
    return [
        presence(removed_shards(known, listing)),
        *(staleness(asset, found) for asset, found in due.by_asset.items() if not due.in_progress.get(asset)),
    ]


def changed(
    instance: dg.DagsterInstance, found: Sequence[dg.AssetCheckEvaluation]
) -> list[dg.AssetCheckEvaluation]:
    """Return the outcomes that the latest ones do not say.

    A check that was never evaluated counts as passed.
    """
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [evaluation.asset_check_key for evaluation in found]
    )

    def is_known(evaluation: dg.AssetCheckEvaluation) -> bool:
        record = latest.get(evaluation.asset_check_key)
        if record is None:
            return evaluation.passed
        if not isinstance(record.evaluation, dg.AssetCheckEvaluation):  # planned by a run that was lost
            return False
        return dict(record.evaluation.metadata) == dict(evaluation.metadata)

    return [evaluation for evaluation in found if not is_known(evaluation)]
