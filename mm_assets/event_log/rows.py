"""Database rows of events, as Dagster's own storage reads them.

An `EventRow` gives the rows of one event. Their text is packed by `pack_event`, in Dagster's storage format
without what the classes take by default, and with plain values for metadata where they make the same of
them. The classes of which a run has one or more for each shard are packed here, at a fifth of the time that
the general way takes; any other goes that way.
`mm_assets_tests/event_log/test_canaries.py` compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluation,
    AssetCheckEvaluationPlanned,
)
from dagster._core.definitions.metadata.table import TableColumnConstraints, TableConstraints
from dagster._core.events import (
    AssetMaterializationPlannedData,
    AssetObservationData,
    StepMaterializationData,
)
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster_shared.serdes.serdes import pack_value

Packed = dict[str, Any]

# Classes of metadata that Dagster infers from a plain value when it reads an event.
_PLAIN: dict[type, type] = {
    dg.IntMetadataValue: int,
    dg.FloatMetadataValue: float,
    dg.BoolMetadataValue: bool,
    dg.TextMetadataValue: str,
}
_SCALARS = (str, int, float, bool, type(None))
_ANY_COLUMN = TableColumnConstraints()
_ANY_TABLE = TableConstraints(other=[])


def without_origin(event: EventLogEntry) -> EventLogEntry:
    """Return an event without what no page shows.

    That is where in the process it arose (`logging_tags`, `pid`, handles and kind of its step), and its
    message a second time.
    """
    inner = event.get_dagster_event()
    message = event.user_message if inner.message is None else ""
    inner = inner._replace(
        logging_tags={}, step_handle=None, node_handle=None, step_kind_value=None, pid=None
    )
    return event._replace(dagster_event=inner, user_message=message)


def pack_event(event: EventLogEntry) -> Packed:
    """Return an event of an asset or of a check, as `without_origin` leaves it."""
    inner = event.get_dagster_event()
    return {
        "__class__": "EventLogEntry",
        "error_info": None,
        "level": event.level,
        "user_message": event.user_message,
        "run_id": event.run_id,
        "timestamp": event.timestamp,
        "step_key": event.step_key,
        "pipeline_name": event.job_name,
        "dagster_event": {
            "__class__": "DagsterEvent",
            "event_type_value": inner.event_type_value,
            "pipeline_name": inner.job_name,
            "event_specific_data": _pack_data(inner.event_specific_data),
            "message": inner.message,
            "step_key": inner.step_key,
        },
    }


def to_json(packed: Any) -> str:
    """Return packed values as text."""
    return json.dumps(packed, separators=(",", ":"))


def _pack_data(data: Any) -> Any:
    match data:
        case AssetCheckEvaluation():
            return _pack_evaluation(data)
        case StepMaterializationData() if not data.asset_lineage:
            made = _pack_asset_event("AssetMaterialization", data.materialization)
            return {"__class__": "StepMaterializationData", "materialization": made}
        case AssetObservationData():
            observed = _pack_asset_event("AssetObservation", data.asset_observation)
            return {"__class__": "AssetObservationData", "asset_observation": observed}
        case AssetMaterializationPlannedData() if data.partitions_subset is None:
            return {
                "__class__": "AssetMaterializationPlannedData",
                "asset_key": _pack_asset(data.asset_key),
                "partition": data.partition,
            }
    return pack_value(data)


def _pack_evaluation(evaluation: AssetCheckEvaluation) -> Packed:
    packed: Packed = {
        "__class__": "AssetCheckEvaluation",
        "asset_key": _pack_asset(evaluation.asset_key),
        "check_name": evaluation.check_name,
        "success": evaluation.passed,
        "metadata": {name: _pack_value(value) for name, value in evaluation.metadata.items()},
        "severity": {"__enum__": f"AssetCheckSeverity.{evaluation.severity.name}"},
        "blocking": evaluation.blocking,
        "partition": evaluation.partition,
    }
    if (target := evaluation.target_materialization_data) is not None:
        packed["target_materialization_data"] = {
            "__class__": "AssetCheckEvaluationTargetMaterializationData",
            "storage_id": target.storage_id,
            "run_id": target.run_id,
            "timestamp": target.timestamp,
        }
    if evaluation.description is not None:
        packed["description"] = evaluation.description
    return packed


def _pack_asset_event(class_name: str, event: dg.AssetMaterialization | dg.AssetObservation) -> Packed:
    packed: Packed = {
        "__class__": class_name,
        "asset_key": _pack_asset(event.asset_key),
        "metadata_entries": [
            {"__class__": "EventMetadataEntry", "label": name, "value": _pack_value(value)}
            for name, value in event.metadata.items()
        ],
        "partition": event.partition,
        "tags": None if event.tags is None else dict(event.tags),
    }
    if event.description is not None:
        packed["description"] = event.description
    return packed


def _pack_asset(key: dg.AssetKey) -> Packed:
    return {"__class__": "AssetKey", "path": list(key.path)}


def _is_plain(data: Any) -> bool:
    """Return whether JSON data are read as written: Dagster takes ``{"__class__": …}`` for an object."""
    if type(data) is dict:
        return all(
            type(name) is str and not name.startswith("__") and _is_plain(value)
            for name, value in data.items()
        )
    return all(map(_is_plain, data)) if type(data) is list else type(data) in _SCALARS


def _pack_value(value: Any) -> Any:
    plain = _PLAIN.get(type(value))
    if plain is not None and type(value.value) is plain and getattr(value, "text", "") is not None:
        return value.value
    if type(value) is dg.MarkdownMetadataValue:
        return {"__class__": "MarkdownMetadataEntryData", "md_str": value.md_str}
    if type(value) is dg.JsonMetadataValue and type(value.data) in (dict, list) and _is_plain(value.data):
        return value.data
    if type(value) is dg.TableSchemaMetadataValue and value.schema.constraints == _ANY_TABLE:
        columns = [_pack_column(column) for column in value.schema.columns]
        return {
            "__class__": "TableSchemaMetadataEntryData",
            "schema": {"__class__": "TableSchema", "columns": columns},
        }
    return pack_value(value)


def _pack_column(column: dg.TableColumn) -> Any:
    if column.constraints is not _ANY_COLUMN and column.constraints != _ANY_COLUMN:
        return pack_value(column)
    packed: Packed = {"__class__": "TableColumn", "name": column.name}
    if column.type != "string":
        packed["type"] = column.type
    if column.description is not None:
        packed["description"] = column.description
    if column.tags:
        packed["tags"] = dict(column.tags)
    return packed


Kind = dg.DagsterEventType

_ASSETS = frozenset({Kind.ASSET_MATERIALIZATION, Kind.ASSET_MATERIALIZATION_PLANNED, Kind.ASSET_OBSERVATION})
_CHECKS = frozenset({Kind.ASSET_CHECK_EVALUATION, Kind.ASSET_CHECK_EVALUATION_PLANNED})
_STEPS = frozenset(
    {
        Kind.STEP_START,
        Kind.STEP_INPUT,
        Kind.LOADED_INPUT,
        Kind.STEP_OUTPUT,
        Kind.HANDLED_OUTPUT,
        Kind.STEP_SUCCESS,
    }
)
# Events of which a run has many: for each shard, and for each step. What tells of the state of a run or of an
# error is written at once.
BATCHED = _ASSETS | _CHECKS | _STEPS
# What an evaluation has by default, and what only other pages than those of checks show.
_DEFAULT_SEVERITY = {"__enum__": "AssetCheckSeverity.ERROR"}
_UNSEEN = frozenset({"message", "step_key"})
_ANY_PARTITION = "\x00any partition\x00"


@dataclass
class EventRow:
    """An event on its way into the database.

    Args:
        event: the event, without what is not stored.
        in_run: whether the run's own database has it by now.
        in_index: whether the index of all runs has it by now.
    """

    event: EventLogEntry
    in_run: bool = False
    in_index: bool = False
    _packed: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Packed at once: what cannot be stored must fail in whoever logs it.
        if self.is_indexed:
            self.event = without_origin(self.event)
            self._packed = pack_event(self.event)
        else:
            self._packed = dict(pack_value(self.event))

    @cached_property
    def kind(self) -> dg.DagsterEventType:
        return dg.DagsterEventType(self._dagster_event.event_type_value)

    @property
    def is_asset(self) -> bool:
        return self.kind in _ASSETS

    @property
    def is_check(self) -> bool:
        return self.kind in _CHECKS

    @property
    def is_indexed(self) -> bool:
        """Whether readers over all runs look for it."""
        return self.is_asset or self.is_check

    @cached_property
    def asset(self) -> str | None:
        """Key of the asset; None for checks, which stock rows do not give one either."""
        key = self._dagster_event.asset_key
        return None if key is None else key.to_string()

    @property
    def evaluation(self) -> AssetCheckEvaluation | None:
        data = self._dagster_event.event_specific_data
        return data if isinstance(data, AssetCheckEvaluation) else None

    @property
    def planned_check(self) -> AssetCheckEvaluationPlanned | None:
        data = self._dagster_event.event_specific_data
        return data if isinstance(data, AssetCheckEvaluationPlanned) else None

    @property
    def is_logged(self) -> bool:
        """Whether the event gets a row in the log.

        A check that one shard has passed has its state, with all of the evaluation, in the table of check
        executions, and the step ends with an evaluation over all shards. A row of its own would double it.
        """
        evaluation = self.evaluation
        return evaluation is None or evaluation.partition is None or not evaluation.passed

    @cached_property
    def text(self) -> str:
        """The whole event."""
        return to_json(self._packed)

    @property
    def timestamp(self) -> datetime:
        """In UTC and without saying so, as all tables have it."""
        return datetime.fromtimestamp(self.event.timestamp, UTC).replace(tzinfo=None)

    def log_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the event log, without ids: one, or one for each partition that is planned."""
        row = self._log_row
        subset = self._dagster_event.partitions_subset
        if subset is None:
            yield {**row, "event": self.text}
            return
        any_one = AssetMaterializationPlannedData(self._dagster_event.asset_key, partition=_ANY_PARTITION)
        event = {**self._packed["dagster_event"], "event_specific_data": _pack_data(any_one), "message": ""}
        text = to_json({**self._packed, "dagster_event": event})
        before, _, after = text.partition(json.dumps(_ANY_PARTITION))
        for key in subset.get_partition_keys():
            yield {**row, "event": f"{before}{json.dumps(key)}{after}", "partition": key}

    def run_row(self) -> dict[str, Any]:
        """Return the row for a database that only has the run's own log.

        The materialization of a partition is abbreviated: without metadata and tags.
        """
        return {**self._log_row, "event": self._short_text()}

    @cached_property
    def _log_row(self) -> dict[str, Any]:
        return {
            "run_id": self.event.run_id,
            "dagster_event_type": self._dagster_event.event_type_value,
            "timestamp": self.timestamp,
            "step_key": self._dagster_event.step_key,
            "asset_key": self.asset,
            "partition": self._dagster_event.partition or None,
        }

    def _short_text(self) -> str:
        data = self._packed["dagster_event"]["event_specific_data"]
        made = data.get("materialization") if self.is_asset else None
        if made is None or not made["partition"]:
            return self.text
        short_data = {**data, "materialization": {**made, "metadata_entries": [], "tags": None}}
        event = {**self._packed["dagster_event"], "event_specific_data": short_data}
        return to_json({**self._packed, "dagster_event": event})

    def planned_rows(self, event_id: int) -> Iterator[dict[str, Any]]:
        """Yield a row of the check executions for each partition for which this check is planned."""
        planned = self.planned_check
        assert planned is not None
        row = {
            "asset_key": planned.asset_key.to_string(),
            "check_name": planned.check_name,
            "run_id": self.event.run_id,
            "execution_status": AssetCheckExecutionRecordStatus.PLANNED.value,
            "evaluation_event_timestamp": self.timestamp,
            "evaluation_event_storage_id": event_id,
        }
        subset = planned.partitions_subset
        if subset is None:
            yield {**row, "partition": None, "evaluation_event": self.text}
            return
        # Without an event, as those of an earlier Dagster: the row tells all that it has to tell.
        for key in subset.get_partition_keys():
            yield {**row, "partition": key, "evaluation_event": None}

    def evaluated_row(self, event_id: int) -> dict[str, Any]:
        """Return the row of the check executions for this evaluation."""
        evaluation = self.evaluation
        assert evaluation is not None
        status = AssetCheckExecutionRecordStatus
        target = evaluation.target_materialization_data
        return {
            "asset_key": evaluation.asset_key.to_string(),
            "check_name": evaluation.check_name,
            "partition": evaluation.partition,
            "run_id": self.event.run_id,
            "execution_status": (status.SUCCEEDED if evaluation.passed else status.FAILED).value,
            "evaluation_event": self._evaluation_text(),
            "evaluation_event_timestamp": self.timestamp,
            "evaluation_event_storage_id": event_id,
            "materialization_event_storage_id": None if target is None else target.storage_id,
        }

    def _evaluation_text(self) -> str:
        """The event for the check executions, of which pages show the evaluation, its time and its step.

        Of a check that one shard has passed it leaves out metadata without content: an empty list of
        problems, a count of none.
        """
        event = {name: value for name, value in self._packed["dagster_event"].items() if name not in _UNSEEN}
        if not self.is_logged:
            data = event["event_specific_data"]
            said = {name: value for name, value in data["metadata"].items() if not _is_empty(value)}
            event["event_specific_data"] = {**data, "metadata": said}
            if data["severity"] == _DEFAULT_SEVERITY:
                del event["event_specific_data"]["severity"]
        packed = {name: value for name, value in self._packed.items() if name != "pipeline_name"}
        return to_json({**packed, "dagster_event": event})

    @property
    def _dagster_event(self) -> Any:
        return self.event.dagster_event


def _is_empty(packed: Any) -> bool:
    """Return whether a packed metadata value is an empty text, list or object, or an integer of 0."""
    if isinstance(packed, dict) and "__class__" in packed:
        return any(value in ("", [], {}) for name, value in packed.items() if name != "__class__")
    return packed in ("", [], {}) or (type(packed) is int and packed == 0)


MaterializationKey = tuple[str, str, float]  # within a run: asset, partition, timestamp


def abbreviated_key(event: EventLogEntry) -> MaterializationKey | None:
    """Return the key of a materialization that may be abbreviated (`EventRow.run_row`); None for others."""
    made = event.asset_materialization
    if made is None or not made.partition or made.metadata or made.tags:
        return None
    return made.asset_key.to_string(), made.partition, event.timestamp


def is_batched(event: EventLogEntry) -> bool:
    """Return whether an event may wait; those of no run (`report_runless_asset_event`) are not many."""
    return bool(event.run_id) and event.dagster_event_type in BATCHED
