"""Asset checks that are steps of their own and say something of every shard: one evaluation a shard, then one
for all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import dagster as dg

from mm_assets.io_managers import events
from mm_assets.io_managers.check_log import CheckLog
from mm_assets.io_managers.shards import Check
from mm_assets.partitions import SHARDS


def specs_by_shard(asset: dg.AssetKey, descriptions: Mapping[str, str]) -> list[dg.AssetCheckSpec]:
    """Specs of checks that are partitioned by shard, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", dg.PreviewWarning
        )  # partitioned checks: looked at, pinned, under test
        return [
            dg.AssetCheckSpec(name, asset=asset, description=text, partitions_def=SHARDS)
            for name, text in descriptions.items()
        ]


def shards_to_check(context: dg.AssetCheckExecutionContext) -> list[str]:
    """The shards the run was launched for; launched without partitions, all there are."""
    keys = events.keys_of_run(context.run, SHARDS, context.instance)
    return keys or sorted(SHARDS.get_partition_keys(dynamic_partitions_store=context.instance))


def report_shards(
    context: dg.AssetCheckExecutionContext,
    asset: dg.AssetKey,
    outcomes: Iterable[tuple[str, Sequence[Check]]],
    beyond_shards: Callable[[], Mapping[str, Sequence[str]]] = dict,
) -> Iterator[dg.Output[None]]:
    """Log the checks of each shard as they become known, then one evaluation over all shards for each check
    of the step.

    ``beyond_shards`` gives by check what is wrong with no shard in particular; it is asked once all shards
    are known.

    Yields an empty output in the place of each check. An `AssetCheckResult` would have Dagster look for the
    one partition of the run, and a run of many, or of none, has no such thing.
    """
    specs = {spec.name: spec for spec in context.check_specs if spec.key in context.selected_asset_check_keys}
    log = CheckLog(context.instance, context.run.run_id, context.op_execution_context.log_event, asset, specs)
    for shard, checks in outcomes:
        log.add(shard, checks)
    log.finish(beyond_shards())
    for spec in specs.values():
        yield dg.Output(None, output_name=spec.get_python_identifier())
