"""Events as Dagster's storage format has them, without what the classes take by default.

The classes of which a run has one or more for each shard are packed here, at a fifth of the time that the
general way takes; any other goes that way. `mm_assets_tests/event_log/test_canaries.py` compares the two.
"""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluation
from dagster._core.definitions.metadata.table import TableColumnConstraints, TableConstraints
from dagster._core.events import AssetMaterializationPlannedData, StepMaterializationData
from dagster._core.events.log import EventLogEntry
from dagster_shared.serdes.serdes import pack_value

Packed = dict[str, Any]

_VALUES: dict[type, tuple[str, str]] = {
    dg.IntMetadataValue: ("IntMetadataEntryData", "value"),
    dg.FloatMetadataValue: ("FloatMetadataEntryData", "value"),
    dg.BoolMetadataValue: ("BoolMetadataEntryData", "value"),
    dg.TextMetadataValue: ("TextMetadataEntryData", "text"),
    dg.MarkdownMetadataValue: ("MarkdownMetadataEntryData", "md_str"),
}
_ANY_COLUMN = TableColumnConstraints()
_ANY_TABLE = TableConstraints(other=[])


def without_origin(event: EventLogEntry) -> EventLogEntry:
    """Return an event without what no page shows.

    That is where in the process it arose (`logging_tags` and the handles of its step), and its message a
    second time.
    """
    inner = event.get_dagster_event()
    message = event.user_message if inner.message is None else ""
    inner = inner._replace(logging_tags={}, step_handle=None, node_handle=None)
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
            "step_kind_value": inner.step_kind_value,
            "event_specific_data": _pack_data(inner.event_specific_data),
            "message": inner.message,
            "pid": inner.pid,
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
            return {
                "__class__": "StepMaterializationData",
                "materialization": _pack_materialization(data.materialization),
            }
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
    if evaluation.target_materialization_data is not None:
        packed["target_materialization_data"] = pack_value(evaluation.target_materialization_data)
    if evaluation.description is not None:
        packed["description"] = evaluation.description
    return packed


def _pack_materialization(made: dg.AssetMaterialization) -> Packed:
    packed: Packed = {
        "__class__": "AssetMaterialization",
        "asset_key": _pack_asset(made.asset_key),
        "metadata_entries": [
            {"__class__": "EventMetadataEntry", "label": name, "entry_data": _pack_value(value)}
            for name, value in made.metadata.items()
        ],
        "partition": made.partition,
        "tags": None if made.tags is None else dict(made.tags),
    }
    if made.description is not None:
        packed["description"] = made.description
    return packed


def _pack_asset(key: dg.AssetKey) -> Packed:
    return {"__class__": "AssetKey", "path": list(key.path)}


def _pack_value(value: Any) -> Any:
    known = _VALUES.get(type(value))
    if known is not None:
        return {"__class__": known[0], known[1]: value.value}
    if type(value) is dg.JsonMetadataValue and type(value.data) in (dict, list) and not value.data:
        return {"__class__": "JsonMetadataEntryData", "data": value.data}
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
    packed: Packed = {"__class__": "TableColumn", "name": column.name, "type": column.type}
    if column.description is not None:
        packed["description"] = column.description
    if column.tags:
        packed["tags"] = dict(column.tags)
    return packed
