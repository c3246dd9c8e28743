"""Backfills and runs as the event log shows them, written by Dagster's own interface; no work is done."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.definitions.partitions.subset import DefaultPartitionsSubset
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.events import (
    AssetMaterializationPlannedData,
    AssetObservationData,
    DagsterEvent,
    DagsterEventType,
    StepMaterializationData,
)
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.execution.plan.objects import StepFailureData
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    ScheduleInstigatorData,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._utils.error import SerializableErrorInfo

_LOADABLE = LoadableTargetOrigin(module_name="toy")


def _origin(instigator: str) -> RemoteInstigatorOrigin:
    location = ManagedGrpcPythonEnvCodeLocationOrigin(_LOADABLE, "here")
    return RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "repository"), instigator)


@dataclass
class Writer:
    """Writes events of runs into an instance.

    Args:
        backfill: id of the backfill that the runs belong to; None: of none.
    """

    instance: dg.DagsterInstance
    backfill: str | None = None
    job: str = "__ASSET_JOB"
    runs: list[str] = field(default_factory=list)

    def begin_backfill(self, keys: Sequence[str]) -> None:
        """Add a backfill over these partitions, in progress."""
        self.backfill = uuid.uuid4().hex[:8]
        self.instance.add_backfill(self._backfill(BulkActionStatus.REQUESTED, keys))

    def end_backfill(self, status: str = "COMPLETED_FAILED", error: str | None = None) -> None:
        assert self.backfill is not None
        found = self.instance.get_backfill(self.backfill)
        assert found is not None
        self.instance.update_backfill(
            found.with_status(BulkActionStatus[status])
            .with_end_timestamp(time.time())
            .with_error(SerializableErrorInfo(error, [], None) if error else None)
        )

    def begin_run(self, assets: Sequence[str] = (), tags: Mapping[str, str] | None = None) -> str:
        """Add a run that has started; its id."""
        of_backfill = {"dagster/backfill": self.backfill} if self.backfill else {}
        run = create_run_for_test(
            self.instance,
            run_id=str(uuid.uuid4()),
            job_name=self.job,
            status=dg.DagsterRunStatus.STARTED,
            tags={**of_backfill, **(tags or {})},
            asset_selection=frozenset(map(dg.AssetKey, assets)) if assets else None,
        )
        self.runs.append(run.run_id)
        return run.run_id

    def end_run(self, run_id: str, ok: bool) -> None:
        kind = DagsterEventType.RUN_SUCCESS if ok else DagsterEventType.RUN_FAILURE
        event = DagsterEvent(kind.value, self.job, message="done" if ok else "the machine is gone")
        self.instance.report_dagster_event(event, run_id)

    def fail_untagged(self, run_id: str) -> None:
        """Have a run fail that Dagster has not tagged yet: it does that in a statement of its own."""
        event = DagsterEvent(DagsterEventType.RUN_FAILURE.value, self.job, message="the machine is gone")
        self.instance.run_storage.handle_run_event(run_id, event, datetime.now(UTC))

    def failed(self, run_id: str, asset: str, key: str, reason: str) -> None:
        """Have a run tell why it could not make a partition, as `ShardReports` does."""
        observation = dg.AssetObservation(dg.AssetKey(asset), partition=key, metadata={"error": reason})
        event = DagsterEvent(
            DagsterEventType.ASSET_OBSERVATION.value,
            self.job,
            event_specific_data=AssetObservationData(observation),
        )
        self.instance.report_dagster_event(event, run_id)

    def fail_step(self, run_id: str, step: str) -> None:
        """Have a step begin and fail."""
        error = SerializableErrorInfo("as it does on purpose", [], None)
        for kind, data in (
            (DagsterEventType.STEP_START, None),
            (DagsterEventType.STEP_FAILURE, StepFailureData(error, None)),
        ):
            event = DagsterEvent(kind.value, self.job, step_key=step, event_specific_data=data)
            self.instance.report_dagster_event(event, run_id)

    def cancel_run(self, run_id: str) -> None:
        self.instance.report_dagster_event(
            DagsterEvent(DagsterEventType.RUN_CANCELED.value, self.job, message="cancelled"), run_id
        )

    def stopped(self, sensor: str) -> None:
        """Have somebody stop a sensor in the UI."""
        stopped = InstigatorStatus.STOPPED
        self.instance.add_instigator_state(
            InstigatorState(_origin(sensor), InstigatorType.SENSOR, stopped, SensorInstigatorData())
        )

    def ticked(self, sensor: str, error: str | None) -> None:
        """Add a tick of a running sensor that has ended, well or with an error."""
        origin = _origin(sensor)
        state = InstigatorState(
            origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, SensorInstigatorData()
        )
        if self.instance.get_instigator_state(origin.get_id(), origin.get_selector().get_id()) is None:
            self.instance.add_instigator_state(state)
        self.instance.create_tick(
            TickData(
                origin.get_id(),
                sensor,
                InstigatorType.SENSOR,
                TickStatus.FAILURE if error else TickStatus.SKIPPED,
                time.time(),
                error=SerializableErrorInfo(error, [], None) if error else None,
                selector_id=state.selector_id,
            )
        )

    def switched(self, schedule: str, status: InstigatorStatus) -> None:
        """Start or stop a schedule, as in the UI."""
        self.instance.add_instigator_state(
            InstigatorState(
                _origin(schedule), InstigatorType.SCHEDULE, status, ScheduleInstigatorData("@daily")
            )
        )

    def planned(self, run_id: str, asset: str, key: str) -> None:
        data = AssetMaterializationPlannedData(dg.AssetKey(asset), partition=key)
        event = DagsterEvent(
            DagsterEventType.ASSET_MATERIALIZATION_PLANNED.value, self.job, event_specific_data=data
        )
        self.instance.report_dagster_event(event, run_id)

    def all_planned(self, run_id: str, asset: str, keys: Sequence[str]) -> None:
        """`planned` for many partitions, in one statement for the database that all runs share.

        The event log does the same for each: here it is spared the work for the run's own log.
        """
        storage = self.instance.event_log_storage
        assert isinstance(storage, SqlEventLogStorage)
        data = [AssetMaterializationPlannedData(dg.AssetKey(asset), partition=key) for key in keys]
        kind = DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        entries = [
            dg.EventLogEntry(
                None,
                10,
                "",
                run_id,
                time.time(),
                dagster_event=DagsterEvent(kind.value, self.job, event_specific_data=one),
            )
            for one in data
        ]
        with storage.index_connection() as connection:
            connection.execute(storage.prepare_insert_event_batch(entries))

    def materialized(
        self, run_id: str, asset: str, key: str, metadata: Mapping[str, float | bool] | None = None
    ) -> None:
        found = dg.AssetMaterialization(asset, partition=key, metadata=dict(metadata or {}))
        event = DagsterEvent(
            DagsterEventType.ASSET_MATERIALIZATION.value,
            self.job,
            event_specific_data=StepMaterializationData(found, []),
        )
        self.instance.report_dagster_event(event, run_id)

    def planned_check(self, run_id: str, asset: str, check: str, keys: Sequence[str]) -> None:
        data = AssetCheckEvaluationPlanned(
            asset_key=dg.AssetKey(asset),
            check_name=check,
            partitions_subset=DefaultPartitionsSubset(set(keys)),
        )
        event = DagsterEvent(
            DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value, self.job, event_specific_data=data
        )
        self.instance.report_dagster_event(event, run_id)

    def evaluated(
        self,
        run_id: str,
        asset: str,
        check: str,
        key: str | None,
        passed: bool,
        severity: str = "ERROR",
        **metadata: str,
    ) -> None:
        data = dg.AssetCheckEvaluation(
            dg.AssetKey(asset),
            check,
            passed,
            metadata={name: dg.MetadataValue.text(text) for name, text in metadata.items()},
            severity=dg.AssetCheckSeverity[severity],
            partition=key,
        )
        event = DagsterEvent(
            DagsterEventType.ASSET_CHECK_EVALUATION.value, self.job, event_specific_data=data
        )
        self.instance.report_dagster_event(event, run_id)

    def _backfill(self, status: BulkActionStatus, keys: Sequence[str]) -> PartitionBackfill:
        assert self.backfill is not None
        return PartitionBackfill(self.backfill, status, False, {}, time.time(), partition_names=list(keys))
