"""Outcomes of asset checks in the event log: one evaluation a shard, against the materialization it judges,
then one over all shards.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import dagster as dg

from mm_assets.io_managers import events
from mm_assets.io_managers.metadata import metadata_values
from mm_assets.io_managers.shards import Check

# Evaluations wait for others, so that one query finds the materializations of all: so many shards, and so
# many seconds, at most.
_SHARDS_AT_ONCE = 50
_LONGEST_WAIT = 2.0
_LISTED = 50
_LOOKED_AT = 500  # failures of other runs, the latest first


class CheckLog:
    """Logs the checks of one asset from within a step. Give it each shard's checks after the shard's
    materialization was logged.

    ``checks`` are those that this step may evaluate: others are passed over. Call `finish` once all shards
    are known.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        run_id: str,
        log_event: Callable[[Any], None],
        asset: dg.AssetKey,
        checks: Mapping[str, dg.AssetCheckSpec],
    ) -> None:
        self._instance = instance
        self._run_id = run_id
        self._log_event = log_event
        self._asset = asset
        self._specs = checks
        self._waiting: dict[str, Sequence[Check]] = {}
        self._since = 0.0
        self._evaluated: dict[str, dict[str, Check]] = {}  # check -> shard -> outcome

    def add(self, shard: str, checks: Sequence[Check]) -> None:
        """Log these outcomes, soon."""
        known = [check for check in checks if check.name in self._specs]
        if not known:
            return
        self._since = self._since if self._waiting else time.monotonic()
        self._waiting[shard] = known
        if len(self._waiting) >= _SHARDS_AT_ONCE or time.monotonic() - self._since > _LONGEST_WAIT:
            self._flush()

    def finish(self, problems: Mapping[str, Sequence[str]] | None = None) -> None:
        """Log what waits, and one evaluation over all shards for each check evaluated here: it is what the
        asset's overview shows.

        ``problems`` says by check what is wrong with no shard in particular: the evaluation over all has it
        and fails. A check that was planned for a shard and never came to be evaluated (the shard failed
        before) counts as not evaluated.
        """
        self._flush()
        events.withdraw_planned(self._instance, self._run_id, [spec.key for spec in self._specs.values()])
        latest = events.latest_of_asset(self._instance, self._asset)
        problems = {name: lines for name, lines in (problems or {}).items() if lines}
        for name in [name for name in self._specs if name in self._evaluated or name in problems]:
            self._log_event(
                self._over_all(
                    self._specs[name], self._evaluated.get(name, {}), latest, problems.get(name, ())
                )
            )

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        found = events.latest_materializations(self._instance, self._asset, waiting)
        for shard, checks in waiting.items():
            for check in checks:
                self._evaluated.setdefault(check.name, {})[shard] = check
                self._log_event(_evaluation(self._specs[check.name], shard, check, found.get(shard)))

    def _over_all(
        self,
        spec: dg.AssetCheckSpec,
        outcomes: Mapping[str, Check],
        latest: events.Latest | None,
        problems: Sequence[str],
    ) -> dg.AssetCheckEvaluation:
        bad = {
            shard: str(check.metadata.get("summary", ""))
            for shard, check in outcomes.items()
            if not check.passed
        }
        severities = {check.severity for check in outcomes.values() if not check.passed}
        for shard, evaluation in events.failing_shards(self._instance, spec.key, _LOOKED_AT).items():
            if shard not in outcomes:
                summary = evaluation.metadata.get("summary")
                bad[shard] = "" if summary is None else str(summary.value)
                severities.add(evaluation.severity.name)
        partitions: Collection[str] = ()
        if spec.partitions_def is not None:
            partitions = spec.partitions_def.get_partition_keys(dynamic_partitions_store=self._instance)
        listed = dict(sorted(bad.items())[:_LISTED])
        return dg.AssetCheckEvaluation(
            asset_key=spec.asset_key,
            check_name=spec.name,
            passed=not bad and not problems,
            severity=dg.AssetCheckSeverity.WARN
            if severities == {"WARN"} and not problems
            else dg.AssetCheckSeverity.ERROR,
            blocking=spec.blocking,
            metadata=metadata_values(
                {
                    "shards": {"json": listed},
                    "failed": len(bad),
                    "of": len(partitions),
                    "evaluated_in_this_run": len(outcomes),
                    **({"problems": {"json": list(problems)[:_LISTED]}} if problems else {}),
                }
            ),
            target_materialization_data=events.target(latest),
        )


def _evaluation(
    spec: dg.AssetCheckSpec, shard: str, check: Check, judged: events.Latest | None
) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=spec.asset_key,
        check_name=spec.name,
        passed=check.passed,
        partition=shard,
        severity=dg.AssetCheckSeverity[check.severity],
        blocking=spec.blocking,
        metadata=metadata_values(check.metadata),
        target_materialization_data=events.target(judged),
    )
