"""Asset checks that are steps of their own and say something of every shard: one evaluation a shard, then one for all."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import dagster as dg

from mm_assets.io_managers import events
from mm_assets.io_managers.reports import evaluation, metadata_values
from mm_assets.io_managers.shards import Check
from mm_assets.partitions import SHARDS

_LISTED = 50


def specs_by_shard(asset: dg.AssetKey, descriptions: Mapping[str, str]) -> list[dg.AssetCheckSpec]:
    """Specs of checks that are partitioned by shard, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitioned checks: looked at, pinned, under test
        return [dg.AssetCheckSpec(name, asset=asset, description=text, partitions_def=SHARDS) for name, text in descriptions.items()]


def shards_to_check(context: dg.AssetCheckExecutionContext) -> list[str]:
    """The shards the run was launched for; launched without partitions, all there are."""
    keys = events.keys_of_run(context.run, SHARDS, context.instance)
    return keys or sorted(SHARDS.get_partition_keys(dynamic_partitions_store=context.instance))


def report_shards(
    context: dg.AssetCheckExecutionContext, asset: dg.AssetKey, outcomes: Iterable[tuple[str, Sequence[Check]]]
) -> Iterator[dg.Output[None]]:
    """Log the checks of each shard as they become known, then one evaluation over all shards for each check of the step.

    Yields an empty output in the place of each check. An `AssetCheckResult` would have Dagster look for the one partition of the run, and
    a run of many, or of none, has no such thing.
    """
    totals = {key: _Total() for key in sorted(context.selected_asset_check_keys, key=str)}
    for shard, checks in outcomes:
        for check in checks:
            key = dg.AssetCheckKey(asset, check.name)
            if key in totals:
                _log(context, evaluation(key, shard, check))
                totals[key].add(shard, check)
    for key, total in totals.items():
        _log(context, total.evaluation(key))
        yield dg.Output(None, output_name=dg.AssetCheckSpec(key.name, asset=key.asset_key).get_python_identifier())


def _log(context: dg.AssetCheckExecutionContext, event: dg.AssetCheckEvaluation) -> None:
    context.op_execution_context.log_event(event)  # type: ignore[arg-type]  # it takes these, too


class _Total:
    def __init__(self) -> None:
        self._of = 0
        self._bad: dict[str, str] = {}
        self._severity = dg.AssetCheckSeverity.WARN

    def add(self, shard: str, check: Check) -> None:
        self._of += 1
        if not check.passed:
            self._bad[shard] = str(check.metadata.get("summary", ""))
            if check.severity == "ERROR":
                self._severity = dg.AssetCheckSeverity.ERROR

    def evaluation(self, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation:
        listed = dict(sorted(self._bad.items())[:_LISTED])
        return dg.AssetCheckEvaluation(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=not self._bad,
            severity=self._severity,
            metadata=metadata_values({"shards": {"json": listed}, "failed": len(self._bad), "of": self._of}),
        )
