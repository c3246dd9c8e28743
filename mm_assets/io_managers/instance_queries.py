"""Queries of a whole Dagster instance, beyond the documented interface of Dagster 1.13.27.

Alerts ask them every half minute, so the database counts and picks: none reads an event for each shard. What
runs need is in `mm_assets.io_managers.events`. The canaries in
`mm_assets_tests/io_managers/test_instance_queries.py` tell after an upgrade which of these no longer holds:

* the table of check executions has one row for each run, check and partition, with the outcome and the
  serialized evaluation, whose severity is found in its text;
* deleted dynamic partitions leave their table, which lies in the same database;
* an attempt without a materialization after it is named with its run;
* backfills keep their target partitions, ticks their outcome.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import sqlalchemy as db
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.errors import DagsterDefinitionChangedDeserializationError
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, DynamicPartitionsTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._serdes import deserialize_value

# Run ids per query: SQLite refuses statements with too many variables.
_BATCH = 500

_Checks = AssetCheckExecutionsTable.c
_FAILED = _Checks.execution_status == AssetCheckExecutionRecordStatus.FAILED.value


def open_attempts(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, str]:
    """Return the partitions whose latest attempt has no materialization, with the run of the attempt.

    Whether that run has ended is not asked. The cost is that of all partitions of the asset.
    """
    log = instance.event_log_storage
    found = log.get_latest_asset_partition_materialization_attempts_without_materializations(asset)
    return {key: run_id for key, (run_id, _) in found.items()}


def backfills(
    instance: dg.DagsterInstance, statuses: Iterable[str], limit: int
) -> Sequence[PartitionBackfill]:
    """Return the latest backfills with one of these statuses, the latest first."""
    wanted = BulkActionsFilter(statuses=[BulkActionStatus[status] for status in statuses])
    return instance.get_backfills(filters=wanted, limit=limit)


def backfill_size(
    instance: dg.DagsterInstance, backfill_id: str, graph: AssetGraph, asset: dg.AssetKey
) -> int:
    """Return how many partitions of an asset a backfill is to make; 0 if that is not known."""
    backfill = instance.get_backfill(backfill_id)
    if backfill is None or not backfill.is_asset_backfill:
        return len(backfill.partition_names or ()) if backfill else 0
    try:
        targets = backfill.get_asset_backfill_data(graph).target_subset.partitions_subsets_by_asset_key
    except DagsterDefinitionChangedDeserializationError:  # its partitions are no longer what they were
        return 0
    return len(targets[asset]) if asset in targets else 0


def finished_ticks(
    instance: dg.DagsterInstance, origin_id: str, selector_id: str, limit: int
) -> Sequence[InstigatorTick]:
    """Return the latest ticks of a sensor or schedule that have ended, the latest first."""
    ended = [TickStatus.SUCCESS, TickStatus.SKIPPED, TickStatus.FAILURE]
    return instance.get_ticks(origin_id, selector_id, limit=limit, statuses=ended)


@dataclass(frozen=True)
class FailingRun:
    """Evaluations of one check that a run made, that failed, and that none has replaced since.

    Args:
        shards: number of partitions.
        errors: how many of them failed with severity ERROR.
        over_all: the evaluation of no partition failed.
    """

    run_id: str
    shards: int
    errors: int
    over_all: bool


def has_failures(instance: dg.DagsterInstance, check: dg.AssetCheckKey, run_ids: Iterable[str]) -> bool:
    """Return whether an evaluation of the check in one of these runs has failed."""
    for batch in _batches(list(run_ids)):
        if _select_checks(instance, [_Checks.id], check, _Checks.run_id.in_(batch), _FAILED, limit=1):
            return True
    return False


def failing_by_run(
    instance: dg.DagsterInstance, check: dg.AssetCheckKey, partitions: str | None = None
) -> list[FailingRun]:
    """Return how many partitions fail a check now, by the run that evaluated them last.

    The database counts: no evaluation is read into memory.

    Args:
        partitions: name of dynamic partitions; one that has been deleted from them counts no more.
    """
    severity = _Checks.evaluation_event.like('%"AssetCheckSeverity.ERROR"%')
    columns = [
        _Checks.run_id,
        db.func.count(_Checks.partition),
        db.func.sum(db.case((db.and_(_Checks.partition.isnot(None), severity), 1), else_=0)),
        db.func.count() - db.func.count(_Checks.partition),
    ]
    rows = _select_checks(instance, columns, check, *_fails_now(check, partitions), group_by=[_Checks.run_id])
    return [FailingRun(run, int(shards), int(errors), bool(whole)) for run, shards, errors, whole in rows]


def failing_evaluations(
    instance: dg.DagsterInstance,
    check: dg.AssetCheckKey,
    run_ids: Iterable[str],
    limit: int,
    partitions: str | None = None,
    over_all: bool = False,
) -> list[dg.AssetCheckEvaluation]:
    """Return the first failing evaluations of a check that these runs made, by partition.

    Args:
        over_all: the evaluations of no partition instead.
    """
    found: list[dg.AssetCheckEvaluation] = []
    kind = _Checks.partition.is_(None) if over_all else _Checks.partition.isnot(None)
    for batch in _batches(sorted(run_ids)):
        conditions = (_Checks.run_id.in_(batch), kind, *_fails_now(check, partitions))
        for (text,) in _select_checks(
            instance, [_Checks.evaluation_event], check, *conditions, order_by=_Checks.partition, limit=limit
        ):
            event = deserialize_value(text, dg.EventLogEntry).dagster_event
            if event is not None:
                found.append(event.asset_check_evaluation_data)
    return sorted(found, key=lambda evaluation: evaluation.partition or "")[:limit]


def _fails_now(check: dg.AssetCheckKey, partitions: str | None) -> list[Any]:
    """Conditions on a row: it failed, is the latest of its partition that was evaluated, and that exists."""
    evaluated = AssetCheckExecutionRecordStatus.SUCCEEDED.value, AssetCheckExecutionRecordStatus.FAILED.value
    rows = AssetCheckExecutionsTable.alias("of_check").c
    latest = (
        db.select(db.func.max(rows.id))
        .where(
            rows.asset_key == check.asset_key.to_string(),
            rows.check_name == check.name,
            rows.execution_status.in_(evaluated),
        )
        .group_by(rows.partition)
    )
    conditions: list[Any] = [_FAILED, _Checks.id.in_(latest)]
    if partitions is not None:
        dynamic = DynamicPartitionsTable.c
        existing = db.select(dynamic.partition).where(dynamic.partitions_def_name == partitions)
        conditions.append(db.or_(_Checks.partition.is_(None), _Checks.partition.in_(existing)))
    return conditions


def _select_checks(
    instance: dg.DagsterInstance,
    columns: list[Any],
    check: dg.AssetCheckKey,
    *conditions: Any,
    group_by: Iterable[Any] = (),
    order_by: Any = None,
    limit: int | None = None,
) -> list[Any]:
    """Return rows of a check's executions; none from an event log that is in no database."""
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return []
    query = db.select(*columns).where(
        _Checks.asset_key == check.asset_key.to_string(), _Checks.check_name == check.name, *conditions
    )
    with storage.index_connection() as connection:
        return list(connection.execute(query.group_by(*group_by).order_by(order_by).limit(limit)))


def _batches(items: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]
