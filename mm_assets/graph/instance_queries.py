"""Queries of a whole Dagster instance for alerts, backfills, and runs whose process has died.

All go beyond the documented interface of Dagster 1.13.27. What runs need is in
`mm_assets.graph.dagster_internals`.

Alerts ask every half minute, so the database counts and picks: no query reads an event for each shard. The
canaries in `mm_assets_tests/graph/io_manager/test_instance_queries.py` tell after an upgrade which of these
no longer holds:

* the table of check executions has one row for each run, check and partition, with the outcome and the
  serialized evaluation, whose severity is found in its text;
* deleted dynamic partitions leave their table, which lies in the same database;
* backfills keep their target partitions, ticks their outcome.

`launch_backfill` does what the UI's own mutation does, which alone may by documented means. Canary:
`mm_assets_tests/automation/test_backfills.py`.

A run whose process has died is one that Dagster takes to be going on for ever. It would block the run queue,
and its shards would count as in progress. `process_tag` and `watched` make such a run known, `fail_lost_runs`
reports it as failed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import sqlalchemy as db
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.selector import (
    PartitionRangeSelector,
    PartitionsByAssetSelector,
    PartitionsSelector,
)
from dagster._core.errors import DagsterDefinitionChangedDeserializationError
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    DynamicPartitionsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.utils import make_new_backfill_id
from dagster._serdes import deserialize_value
from dagster._time import get_current_timestamp

from mm_assets.graph.dagster_internals import REASON, SHARDS, batches, chunks, unfinished_runs
from mm_assets.storage.temporary import create_locked, is_stale, is_temporary, temporary_name, was_running

_Checks = AssetCheckExecutionsTable.c
_FAILED = _Checks.execution_status == AssetCheckExecutionRecordStatus.FAILED.value
_PASSED = _Checks.execution_status == AssetCheckExecutionRecordStatus.SUCCEEDED.value
_EVALUATED = (AssetCheckExecutionRecordStatus.SUCCEEDED.value, AssetCheckExecutionRecordStatus.FAILED.value)
_IS_ERROR = _Checks.evaluation_event.like('%"AssetCheckSeverity.ERROR"%')
_Events = SqlEventLogStorageTable.c
# What has started a run or a backfill, and why: tags. The UI shows them, and no title of a backfill.
STARTED_BY = "mm_assets/started_by"
WHY = "mm_assets/why"


def launch_backfill(
    instance: dg.DagsterInstance,
    asset_graph: AssetGraph,
    assets: Sequence[dg.AssetKey],
    keys: Sequence[str],
    why: str,
    started_by: str,
) -> str:
    """Have the daemon make partitions of these assets, in runs of neighbouring shards.

    Args:
        why: its title; and, as `started_by`, the value of a tag on the backfill and its runs.

    Returns:
        The backfill's id.
    """
    order = list(instance.get_dynamic_partitions(str(SHARDS.name)))
    ranges = [PartitionRangeSelector(run[0], run[-1]) for run in chunks(keys, order, size=len(order) or 1)]
    selector = PartitionsSelector(ranges)
    backfill_id = make_new_backfill_id()
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        backfill = PartitionBackfill.from_partitions_by_assets(
            backfill_id=backfill_id,
            asset_graph=asset_graph,
            backfill_timestamp=get_current_timestamp(),
            tags={STARTED_BY: started_by, WHY: why},
            dynamic_partitions_store=instance,
            partitions_by_assets=[
                PartitionsByAssetSelector(asset_key=asset, partitions=selector) for asset in assets
            ],
            title=why,
            description=None,
            run_config=None,
        )
    instance.add_backfill(backfill)
    return backfill_id


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


class FailingPartition(NamedTuple):
    """A partition that fails a check: the run that evaluated it last, and whether the severity is ERROR."""

    run_id: str
    is_error: bool


def has_failures(instance: dg.DagsterInstance, check: dg.AssetCheckKey, run_ids: Iterable[str]) -> bool:
    """Return whether an evaluation of the check in one of these runs has failed."""
    for batch in batches(list(run_ids)):
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
    columns = [
        _Checks.run_id,
        db.func.count(_Checks.partition),
        db.func.sum(db.case((db.and_(_Checks.partition.isnot(None), _IS_ERROR), 1), else_=0)),
        db.func.count() - db.func.count(_Checks.partition),
    ]
    rows = _select_checks(instance, columns, check, *_fails_now(check, partitions), group_by=[_Checks.run_id])
    return [FailingRun(run, int(shards), int(errors), bool(whole)) for run, shards, errors, whole in rows]


def failing_partitions(
    instance: dg.DagsterInstance,
    check: dg.AssetCheckKey,
    run_ids: Iterable[str],
    partitions: str | None = None,
) -> dict[str, FailingPartition]:
    """Return the partitions that fail a check now by an evaluation of these runs."""
    found: dict[str, FailingPartition] = {}
    columns = [_Checks.partition, _Checks.run_id, db.case((_IS_ERROR, 1), else_=0)]
    for batch in batches(sorted(run_ids)):
        conditions = (_Checks.run_id.in_(batch), _Checks.partition.isnot(None))
        for key, run, is_error in _select_checks(
            instance, columns, check, *conditions, *_fails_now(check, partitions)
        ):
            found[key] = FailingPartition(run, bool(is_error))
    return found


def withdraw_planned(
    instance: dg.DagsterInstance,
    run_id: str,
    checks: Iterable[dg.AssetCheckKey],
    keys: Iterable[str] = (),
) -> None:
    """Withdraw the planned evaluations of these checks that a run, or one before it, never made.

    What was not checked has not failed: partitions keep their earlier outcome. Only event logs in a database
    store planned checks apart from their events.

    Args:
        run_id: the run, whose planned evaluations are withdrawn for all partitions.
        keys: partitions that the run has tried. What a run that has ended had planned for them, or for no
            partition, is withdrawn as well: a killed run could not do so itself.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return
    by_asset: dict[str, list[str]] = {}
    for check in checks:
        by_asset.setdefault(check.asset_key.to_string(), []).append(check.name)
    table = AssetCheckExecutionsTable.c
    for asset, names in by_asset.items():
        of_checks = (
            table.asset_key == asset,
            table.check_name.in_(names),
            table.execution_status == AssetCheckExecutionRecordStatus.PLANNED.value,
        )
        # Nothing is materialized for what is only planned: with that condition an index has all it takes.
        unfilled = table.materialization_event_storage_id.is_(None)
        places = [(unfilled, table.partition.is_(None))]
        places += [(unfilled, table.partition.in_(batch)) for batch in batches(list(keys))]
        with storage.index_connection() as connection:
            connection.execute(AssetCheckExecutionsTable.delete().where(*of_checks, table.run_id == run_id))
            others = {
                run
                for place in places
                for (run,) in connection.execute(db.select(table.run_id).where(*of_checks, *place).distinct())
            }
        over = others - {run.run_id for run in unfinished_runs(instance)} if others else set()
        if not over:
            continue
        by_them = table.run_id.in_(sorted(over))
        with storage.index_connection() as connection:
            for place in places:
                connection.execute(AssetCheckExecutionsTable.delete().where(*of_checks, *place, by_them))


def failing_shards(
    instance: dg.DagsterInstance, check: dg.AssetCheckKey, limit: int
) -> dict[str, dg.AssetCheckEvaluation]:
    """Return the partitions whose latest valid evaluation of a check failed.

    Args:
        limit: number of failures to look at, the latest first.
    """
    status = {AssetCheckExecutionRecordStatus.FAILED}
    found: dict[str, dg.AssetCheckEvaluation] = {}
    for record in instance.event_log_storage.get_asset_check_execution_history(
        check, limit=limit, status=status
    ):
        if record.partition is not None and record.evaluation is not None:
            found.setdefault(record.partition, record.evaluation)
    failing: set[str | None] = set()
    for keys in batches(list(found)):
        infos = instance.event_log_storage.get_asset_check_partition_info([check], partition_keys=keys)
        failing |= {
            info.partition_key for info in infos if info.is_current and info.latest_execution_status in status
        }
    return {key: evaluation for key, evaluation in found.items() if key in failing}


def failed_since_in(
    instance: dg.DagsterInstance, check: dg.AssetCheckKey, keys: Iterable[str], run_ids: Iterable[str]
) -> set[str]:
    """Return the partitions that failed a check in one of these runs and have not passed it since."""
    found: set[str] = set()
    runs = list(run_ids)
    last = [_Checks.partition, db.func.max(_Checks.id)]
    for batch in batches(sorted(keys)):
        of_keys = _Checks.partition.in_(batch)
        failed: dict[str, int] = {}
        for some in batches(runs):
            by_runs = (of_keys, _FAILED, _Checks.run_id.in_(some))
            rows = _select_checks(instance, last, check, *by_runs, group_by=[_Checks.partition])
            failed |= {key: max(id_, failed.get(key, 0)) for key, id_ in rows}
        passed = _pairs(_select_checks(instance, last, check, of_keys, _PASSED, group_by=[_Checks.partition]))
        found |= {key for key, id_ in failed.items() if id_ > passed.get(key, 0)}
    return found


def evaluation_before(
    instance: dg.DagsterInstance, check: dg.AssetCheckKey, run_ids: Sequence[str]
) -> tuple[str, dg.AssetCheckEvaluation] | None:
    """Return the last evaluation of no partition by any run but these, with its run."""
    conditions = (
        _Checks.partition.is_(None),
        _Checks.execution_status.in_(_EVALUATED),
        _Checks.run_id.notin_(run_ids),
    )
    columns = [_Checks.run_id, _Checks.evaluation_event]
    for run, text in _select_checks(
        instance, columns, check, *conditions, order_by=_Checks.id.desc(), limit=1
    ):
        event = deserialize_value(text, dg.EventLogEntry).dagster_event
        return (run, event.asset_check_evaluation_data) if event is not None else None
    return None


@dataclass(frozen=True)
class LastEvaluations:
    """What the run that evaluated a check last has found, over partitions and assets.

    Args:
        at: time of its latest evaluation, UTC.
        checks: how many of them it has evaluated.
        partitions: for so many partitions, in the check with the most.
        evaluations: in all; ``failed`` of them have not passed.
    """

    run_id: str
    at: datetime
    checks: int
    partitions: int
    evaluations: int
    failed: int


def last_evaluations(
    instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]
) -> LastEvaluations | None:
    """Return what the run found that was the last to evaluate one of these checks for a partition."""
    evaluated = (_Checks.partition.isnot(None), _Checks.execution_status.in_(_EVALUATED))
    latest = [
        (row[0], row[1])
        for check in checks
        for row in _select_checks(
            instance, [_Checks.id, _Checks.run_id], check, *evaluated, order_by=_Checks.id.desc(), limit=1
        )
    ]
    if not latest:
        return None
    _, run_id = max(latest)
    columns = [
        db.func.count(),
        db.func.sum(db.case((_FAILED, 1), else_=0)),
        db.func.max(_Checks.evaluation_event_timestamp),
    ]
    found = [
        row
        for check in checks
        for row in _select_checks(instance, columns, check, *evaluated, _Checks.run_id == run_id)
        if row[0]
    ]
    total, failed = (sum(int(row[column]) for row in found) for column in (0, 1))
    at = max(row[2] for row in found).replace(tzinfo=UTC)
    return LastEvaluations(run_id, at, len(found), max(row[0] for row in found), total, failed)


def logged_at(instance: dg.DagsterInstance, storage_id: int) -> datetime:
    """Return the time of an event of the log, UTC."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage), "only event logs in a database can be asked"
    with storage.index_connection() as connection:
        query = db.select(_Events.timestamp).where(_Events.id == storage_id)
        at: datetime = connection.execute(query).scalar_one()
        return at.replace(tzinfo=UTC)


def reasons(
    instance: dg.DagsterInstance, asset: dg.AssetKey, run_by_key: Mapping[str, str]
) -> dict[str, str]:
    """Return what the observation of each partition in its run says: why the partition failed.

    It reads an event for each, about 0.3 ms.
    """
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage), "only event logs in a database can be asked"
    found: dict[str, str] = {}
    for batch in batches(sorted(run_by_key)):
        query = (
            db.select(_Events.partition, _Events.run_id, db.func.max(_Events.id))
            .where(
                _Events.asset_key == asset.to_string(),
                _Events.dagster_event_type == dg.DagsterEventType.ASSET_OBSERVATION.value,
                _Events.partition.in_(batch),
                _Events.run_id.in_({run_by_key[key] for key in batch}),
            )
            .group_by(_Events.partition, _Events.run_id)
        )
        with storage.index_connection() as connection:
            ids = [id_ for key, run, id_ in connection.execute(query) if run_by_key[key] == run]
        if not ids:
            continue
        wanted = dg.AssetRecordsFilter(asset, storage_ids=ids)
        for record in instance.fetch_observations(wanted, limit=len(ids)).records:
            event = record.asset_observation
            if event is not None and event.partition is not None:
                reason = event.metadata.get(REASON)
                found[event.partition] = str(reason.value) if reason is not None else ""
    return found


_MAX_MESSAGES = 5000


def messages(
    instance: dg.DagsterInstance, run_id: str, level: int = 0, limit: int | None = _MAX_MESSAGES
) -> list[str]:
    """Return those of the first messages that a run has logged in words whose level is at least this."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage), "only event logs in a database can be asked"
    query = (
        db.select(_Events.event)
        .where(_Events.run_id == run_id, _Events.dagster_event_type.is_(None))
        .order_by(_Events.id)
        .limit(limit)
    )
    with storage.run_connection(run_id) as connection:
        rows = connection.execute(query).fetchall()
    entries = (deserialize_value(text, dg.EventLogEntry) for (text,) in rows)
    return [entry.user_message for entry in entries if int(entry.level) >= level]


def failing_evaluations(
    instance: dg.DagsterInstance,
    check: dg.AssetCheckKey,
    run_ids: Iterable[str],
    limit: int,
    partitions: str | None = None,
    over_all: bool = False,
    keys: Collection[str] = (),
) -> list[dg.AssetCheckEvaluation]:
    """Return the first failing evaluations of a check that these runs made, by partition.

    Args:
        over_all: the evaluations of no partition instead.
        keys: those of these partitions only; empty: of any.
    """
    found: list[dg.AssetCheckEvaluation] = []
    kind = _Checks.partition.is_(None) if over_all else _Checks.partition.isnot(None)
    if keys:
        kind = _Checks.partition.in_(keys)
    for batch in batches(sorted(run_ids)):
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
    rows = AssetCheckExecutionsTable.alias("of_check").c
    latest = (
        db.select(db.func.max(rows.id))
        .where(
            rows.asset_key == check.asset_key.to_string(),
            rows.check_name == check.name,
            rows.execution_status.in_(_EVALUATED),
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


def _pairs(rows: Iterable[Any]) -> dict[str, Any]:
    return {row[0]: row[1] for row in rows}


# Tag of a run: the file beside Dagster's databases that the process of the run keeps locked.
PROCESS = "mm_assets/process"

_DEAD = "the process of this run has died"


@contextmanager
def process_tag(instance: dg.DagsterInstance) -> Iterator[dict[str, str]]:
    """Give the tag of the runs that this process executes itself; they are watched within this context."""
    folder = Path(instance.root_directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / temporary_name("run")
    descriptor = create_locked(path)
    try:
        yield {PROCESS: path.name}
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def watched(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[None]:
    """Have a run watched, within this context, that its launcher does not watch: that of `dagster dev`."""
    if PROCESS in run.tags and not _has_tag_of_parent(instance, run):
        yield
        return
    with process_tag(instance) as tag:
        instance.add_run_tags(run.run_id, tag)
        yield


def fail_lost_runs(instance: dg.DagsterInstance, code_location: str | None = None) -> list[str]:
    """Report the `lost_runs` as failed, and return their ids."""
    lost = lost_runs(instance, code_location)
    for run in lost:
        instance.report_run_failed(run, _DEAD)
        if (path := _process_file(instance, run)) is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return [run.run_id for run in lost]


def lost_runs(instance: dg.DagsterInstance, code_location: str | None = None) -> list[dg.DagsterRun]:
    """Return the unfinished runs whose process is dead.

    Args:
        code_location: name of the one whose server this process is, and so starts its runs for the daemon.
            Then those are found, too, that died before they were watched, or that need no workers and are not
            watched at all.
    """
    lost = []
    for run in unfinished_runs(instance):
        if run.status == dg.DagsterRunStatus.QUEUED:  # it has no process yet
            continue
        path = _process_file(instance, run)
        is_ours = code_location is not None and _location_of(run) == code_location
        if is_stale(path) if path is not None else is_ours and _has_lost_process(instance, run):
            lost.append(run)
    return lost


def _process_file(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Path | None:
    """Return the file that the process of a run keeps locked; None if it is not watched by one."""
    name = run.tags.get(PROCESS, "")
    if not is_temporary(name) or _has_tag_of_parent(instance, run):
        return None
    return Path(instance.root_directory, Path(name).name)


def _location_of(run: dg.DagsterRun) -> str | None:
    return None if run.remote_job_origin is None else run.remote_job_origin.location_name


def _has_lost_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether the process is gone that this code server has started for a run."""
    if run.status != dg.DagsterRunStatus.STARTED or GRPC_INFO_TAG not in run.tags:
        return False
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        pid = entry.get_dagster_event().engine_event_data.metadata.get("pid")
        if pid is not None:
            is_gone = not was_running(int(str(pid.value)), entry.timestamp)
            stored = instance.get_run_by_id(run.run_id)  # it may have ended since
            return is_gone and stored is not None and not stored.is_finished
    return False


def _has_tag_of_parent(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run has its tag from the run that it repeats: Dagster copies tags."""
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
    return parent is not None and parent.tags.get(PROCESS) == run.tags.get(PROCESS)
