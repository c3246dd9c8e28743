"""Log of check outcomes: one evaluation per shard, tied to its materialization, then one over all shards."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from mm_assets.io_managers import events
from mm_assets.io_managers.metadata import metadata_values
from mm_assets.io_managers.shards import Check

# Evaluations are batched, so that one query finds the materializations of all. Limits of a batch: shards,
# seconds.
_BATCH_SHARDS = 50
_MAX_WAIT_SECONDS = 2.0
_LISTED = 50
_MAX_FAILURES = 500  # of other runs, the latest first


class CheckLog:
    """Logs the checks of one asset from within a step.

    Add each shard's outcomes after the shard's materialization was logged. Call `finish` once all shards are
    known.

    Args:
        log_event: the method of the step's context.
        checks: specs of the checks that this step may evaluate, by name; outcomes of others are ignored.
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
        self._pending: dict[str, Sequence[Check]] = {}
        self._pending_since = 0.0
        self._evaluated: dict[str, dict[str, Check]] = {}  # check -> shard -> outcome

    def add(self, shard: str, checks: Sequence[Check]) -> None:
        """Log these outcomes, at the latest with the next batch."""
        known = [check for check in checks if check.name in self._specs]
        if not known:
            return
        self._pending_since = self._pending_since if self._pending else time.monotonic()
        self._pending[shard] = known
        if len(self._pending) >= _BATCH_SHARDS or time.monotonic() - self._pending_since > _MAX_WAIT_SECONDS:
            self._flush()

    def finish(self, problems: Mapping[str, Sequence[str]] | None = None) -> None:
        """Log pending outcomes, and one evaluation over all shards for each check evaluated here.

        The asset's overview shows the evaluation over all shards. A check that was planned for a shard but
        never evaluated (the shard failed before) counts as not evaluated.

        Args:
            problems: lines by check that concern no shard in particular. The evaluation over all shards lists
                them and fails.
        """
        self._flush()
        events.withdraw_planned(self._instance, self._run_id, [spec.key for spec in self._specs.values()])
        latest = events.latest_of_asset(self._instance, self._asset)
        problems = {name: lines for name, lines in (problems or {}).items() if lines}
        names = [name for name in self._specs if name in self._evaluated or name in problems]
        partitions = self._partitions() if names else 0
        for name in names:
            self._log_event(
                self._over_all(
                    self._specs[name],
                    self._evaluated.get(name, {}),
                    latest,
                    problems.get(name, ()),
                    partitions,
                )
            )

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        if not pending:
            return
        found = events.targets(self._instance, self._asset, pending)
        for shard, checks in pending.items():
            for check in checks:
                self._evaluated.setdefault(check.name, {})[shard] = check
                self._log_event(_evaluation(self._specs[check.name], shard, check, found.get(shard)))

    def _partitions(self) -> int:
        """Return the number of partitions of the asset, which all its checks share."""
        for spec in self._specs.values():
            if spec.partitions_def is not None:
                return len(spec.partitions_def.get_partition_keys(dynamic_partitions_store=self._instance))
        return 0

    def _over_all(
        self,
        spec: dg.AssetCheckSpec,
        outcomes: Mapping[str, Check],
        latest: events.Latest | None,
        problems: Sequence[str],
        partitions: int,
    ) -> dg.AssetCheckEvaluation:
        bad = {
            shard: str(check.metadata.get("summary", ""))
            for shard, check in outcomes.items()
            if not check.passed
        }
        severities = {check.severity for check in outcomes.values() if not check.passed}
        for shard, evaluation in events.failing_shards(self._instance, spec.key, _MAX_FAILURES).items():
            if shard not in outcomes:
                summary = evaluation.metadata.get("summary")
                bad[shard] = "" if summary is None else str(summary.value)
                severities.add(evaluation.severity.name)
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
                    "of": partitions if spec.partitions_def is not None else 0,
                    "evaluated_in_this_run": len(outcomes),
                    **({"problems": {"json": list(problems)[:_LISTED]}} if problems else {}),
                }
            ),
            target_materialization_data=events.target(latest),
        )


def _evaluation(spec: dg.AssetCheckSpec, shard: str, check: Check, target: Any) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=spec.asset_key,
        check_name=spec.name,
        passed=check.passed,
        partition=shard,
        severity=dg.AssetCheckSeverity[check.severity],
        blocking=spec.blocking,
        metadata=metadata_values(check.metadata),
        target_materialization_data=target,
    )
