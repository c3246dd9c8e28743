"""Asset checks that run as a step of their own, with one evaluation per shard and one over all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import dagster as dg

from mm_assets.io_managers import events
from mm_assets.io_managers.check_log import CheckLog
from mm_assets.io_managers.shards import Check
from mm_assets.partitions import SHARDS


def specs_by_shard(asset: dg.AssetKey, descriptions: Mapping[str, str]) -> list[dg.AssetCheckSpec]:
    """Return specs of checks that are partitioned by shard.

    Args:
        descriptions: description of each check, by name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitioned checks: reviewed, pinned, tested
        return [
            dg.AssetCheckSpec(name, asset=asset, description=text, partitions_def=SHARDS)
            for name, text in descriptions.items()
        ]


def shards_to_check(context: dg.AssetCheckExecutionContext) -> list[str]:
    """Return the shards the run was launched for; all shards for a run without partitions."""
    keys = events.keys_of_run(context.run, SHARDS, context.instance)
    return keys or sorted(SHARDS.get_partition_keys(dynamic_partitions_store=context.instance))


def report_shards(
    context: dg.AssetCheckExecutionContext,
    asset: dg.AssetKey,
    outcomes: Iterable[tuple[str, Sequence[Check]]],
    beyond_shards: Callable[[], Mapping[str, Sequence[str]]] = dict,
) -> Iterator[dg.Output[None]]:
    """Log the checks of each shard as they become known, then one evaluation over all shards for each check.

    Yields an empty output in the place of each check. For an `AssetCheckResult` Dagster would look for the
    one partition of the run, and a run of many, or of none, has no such thing.

    Args:
        outcomes: the shards with their outcomes.
        beyond_shards: returns, by check, problems of no shard in particular; called once all shards are
            known.
    """
    specs = {spec.name: spec for spec in context.check_specs if spec.key in context.selected_asset_check_keys}
    log = CheckLog(context.instance, context.run.run_id, context.op_execution_context.log_event, asset, specs)
    for shard, checks in outcomes:
        log.add(shard, checks)
    log.finish(beyond_shards())
    for spec in specs.values():
        yield dg.Output(None, output_name=spec.get_python_identifier())
