"""Canaries: what our event logs rely on in Dagster 1.13.27 beyond its documentation. Run these after an
upgrade; each says which assumption no longer holds.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluation,
    AssetCheckEvaluationPlanned,
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.metadata import normalize_metadata_value
from dagster._core.definitions.partitions.subset import DefaultPartitionsSubset
from dagster._core.events import (
    AssetMaterializationPlannedData,
    AssetObservationData,
    DagsterEvent,
    StepMaterializationData,
)
from dagster._core.events.log import EventLogEntry
from dagster._core.execution.plan.handle import StepHandle
from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage
from dagster._core.storage.event_log.schema import SqlEventLogStorageMetadata
from dagster._serdes import deserialize_value, serialize_value

from mm_assets.event_log import rows
from mm_assets.event_log.rows import EventRow, without_origin
from mm_assets.event_log.sqlite import BatchedSqliteEventLogStorage

KEY = dg.AssetKey(["a", "b"])
Kind = dg.DagsterEventType

SCHEMA = dg.TableSchema(
    [
        dg.TableColumn("plain", "int64"),
        dg.TableColumn("told", "string", description="words", tags={"a": "b"}),
        dg.TableColumn("strict", constraints=dg.TableColumnConstraints(nullable=False)),
    ]
)
METADATA: dict[str, Any] = {
    "int": 1,
    "float": 1.5,
    "bool": True,
    "text": "ä\n",
    "markdown": dg.MetadataValue.md("# x"),
    "json": dg.MetadataValue.json({"a": [1, None, {"b": "c"}]}),
    "no list": dg.MetadataValue.json([]),
    "no object": dg.MetadataValue.json({}),
    "url": dg.MetadataValue.url("https://example.com"),
    "path": dg.MetadataValue.path("/x"),
    "schema": SCHEMA,
    "constrained": dg.MetadataValue.table_schema(
        dg.TableSchema([dg.TableColumn("x")], dg.TableConstraints(["x > 0"]))
    ),
}
_MADE = dg.AssetMaterialization(KEY, partition='p "1"', metadata=METADATA, tags={"dagster/data_version": "7"})
_EVALUATION = AssetCheckEvaluation(
    KEY, "sound", True, metadata=METADATA, partition="p", severity=dg.AssetCheckSeverity.WARN, blocking=True
)
_TARGET = AssetCheckEvaluationTargetMaterializationData(storage_id=7, run_id="run", timestamp=1.5)
DATA = {
    "materialization": (Kind.ASSET_MATERIALIZATION, StepMaterializationData(_MADE)),
    "described": (
        Kind.ASSET_MATERIALIZATION,
        StepMaterializationData(dg.AssetMaterialization(KEY, description="words")),
    ),
    "observation": (
        Kind.ASSET_OBSERVATION,
        AssetObservationData(dg.AssetObservation(KEY, partition="p", metadata=METADATA)),
    ),
    "planned": (Kind.ASSET_MATERIALIZATION_PLANNED, AssetMaterializationPlannedData(KEY, partition="p")),
    "planned range": (
        Kind.ASSET_MATERIALIZATION_PLANNED,
        AssetMaterializationPlannedData(KEY, partitions_subset=DefaultPartitionsSubset({"p", "q"})),
    ),
    "evaluation": (Kind.ASSET_CHECK_EVALUATION, _EVALUATION),
    "evaluation of a materialization": (
        Kind.ASSET_CHECK_EVALUATION,
        AssetCheckEvaluation(KEY, "sound", False, target_materialization_data=_TARGET, description="words"),
    ),
    "planned check": (
        Kind.ASSET_CHECK_EVALUATION_PLANNED,
        AssetCheckEvaluationPlanned(asset_key=KEY, check_name="sound"),
    ),
}


def entry(kind: dg.DagsterEventType, data: Any, message: str | None = "told") -> EventLogEntry:
    """An event as a step logs it."""
    handle = StepHandle.parse_from_key("step")
    event = DagsterEvent(
        kind.value,
        "job",
        step_handle=handle,
        node_handle=handle.node_handle,
        step_kind_value="COMPUTE",
        logging_tags={"run_id": "run"},
        event_specific_data=data,
        message=message,
        pid=1,
        step_key="step",
    )
    return EventLogEntry(None, 10, "told", "run", 1.25, "step", "job", event)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("message", ["told", None])
def test_what_we_write_dagster_reads_as_the_same_event(name: str, message: str | None) -> None:
    event = entry(*DATA[name], message)
    read = deserialize_value(EventRow(event).text, EventLogEntry)
    assert read == without_origin(event)
    assert read.message == event.message
    assert read.get_dagster_event().event_specific_data == event.get_dagster_event().event_specific_data


def _in_full(packed: Any) -> Any:
    """Packed metadata as Dagster itself would write them: a value that is plain by the class that it makes of
    one.
    """
    if isinstance(packed, list):
        return [_in_full(value) for value in packed]
    if not isinstance(packed, dict):
        return packed
    if packed.get("__class__") == "EventMetadataEntry":
        return {
            "__class__": "EventMetadataEntry",
            "label": packed["label"],
            "entry_data": _value_in_full(packed["value"]),
        }
    found = {name: _in_full(value) for name, value in packed.items()}
    if packed.get("__class__") == "AssetCheckEvaluation":
        found["metadata"] = {name: _value_in_full(value) for name, value in packed["metadata"].items()}
    return found


def _value_in_full(packed: Any) -> Any:
    if isinstance(packed, dict) and "__class__" in packed:
        return packed
    value: Any = normalize_metadata_value(packed)
    return json.loads(serialize_value(value))


@pytest.mark.parametrize("name", DATA)
def test_nothing_is_written_that_dagster_does_not_write(name: str) -> None:
    """A renamed field or class would be read as missing, and a missing one may have a default."""

    def is_part(ours: Any, stock: Any) -> bool:
        if isinstance(ours, dict):
            return ours.keys() <= stock.keys() and all(
                is_part(value, stock[key]) for key, value in ours.items()
            )
        if isinstance(ours, list):
            return len(ours) == len(stock) and all(map(is_part, ours, stock))
        return bool(ours == stock)

    event = entry(*DATA[name])
    assert is_part(
        _in_full(json.loads(EventRow(event).text)), json.loads(serialize_value(without_origin(event)))
    )


@pytest.mark.parametrize(
    "data",
    [
        {"__set__": [1]},
        {"a": {"__class__": "AssetKey", "path": ["q"]}},
        {"__class__": "TextMetadataEntryData", "text": "x"},
        [[{"__enum__": "AssetCheckSeverity.ERROR"}]],
        {"__mapping_items__": [["a", 1]]},
    ],
    ids=str,
)
def test_json_that_looks_like_an_object_of_dagster_is_read_as_dagster_reads_its_own(data: Any) -> None:
    made = dg.AssetMaterialization(KEY, partition="p", metadata={"json": dg.MetadataValue.json(data)})
    told = entry(Kind.ASSET_MATERIALIZATION, StepMaterializationData(made))
    stock = deserialize_value(serialize_value(without_origin(told)), EventLogEntry)
    assert deserialize_value(EventRow(told).text, EventLogEntry) == stock


def test_the_log_of_a_run_says_all_of_a_materialization_which_its_database_has_in_short(
    tmp_path: Path,
) -> None:
    later = entry(*DATA["materialization"])._replace(timestamp=2.5)
    other = dg.AssetMaterialization(KEY, partition='p "1"', metadata={"int": 2})
    told = [
        entry(*DATA["materialization"]),
        later._replace(
            dagster_event=later.get_dagster_event()._replace(
                event_specific_data=StepMaterializationData(other)
            )
        ),
        entry(*DATA["described"]),
        entry(*DATA["observation"]),
        entry(*DATA["evaluation of a materialization"]),
    ]
    log = BatchedSqliteEventLogStorage(str(tmp_path))
    for event in told:
        log.store_event(event)
    records = log.get_records_for_run("run").records
    assert [record.event_log_entry for record in records] == [without_origin(event) for event in told]
    (last,) = log.get_records_for_run(
        "run", of_type=Kind.ASSET_MATERIALIZATION, limit=1, ascending=False
    ).records
    assert last.event_log_entry == without_origin(told[2])
    first = log.get_records_for_run("run", of_type=Kind.ASSET_MATERIALIZATION, limit=1).records
    assert [record.event_log_entry for record in first] == [without_origin(told[0])]
    log.dispose()
    stock = SqliteEventLogStorage(str(tmp_path))
    read = [
        record.event_log_entry.asset_materialization for record in stock.get_records_for_run("run").records
    ]
    found = [
        (made.asset_key, made.partition, dict(made.metadata), made.tags) for made in read if made is not None
    ]
    assert found == [(KEY, 'p "1"', {}, None)] * 2 + [(KEY, None, {}, None)]
    stock.dispose()


def test_a_run_keeps_what_its_database_says_in_full(tmp_path: Path) -> None:
    """As it does of a release before, and of Dagster's own class."""
    event = entry(*DATA["materialization"])
    stock = SqliteEventLogStorage(str(tmp_path))
    stock.store_event(event)
    stock.dispose()
    log = BatchedSqliteEventLogStorage(str(tmp_path))
    with log.index_connection() as connection:
        connection.execute(SqlEventLogStorageMetadata.tables["event_logs"].delete())
    (record,) = log.get_records_for_run("run").records
    assert record.event_log_entry.asset_materialization == _MADE
    log.dispose()


def test_a_planned_check_has_a_row_for_each_partition() -> None:
    keys = {"p", 'q "\\ä', "r"}
    data = AssetCheckEvaluationPlanned(
        asset_key=KEY, check_name="sound", partitions_subset=DefaultPartitionsSubset(keys)
    )
    found = list(EventRow(entry(Kind.ASSET_CHECK_EVALUATION_PLANNED, data)).planned_rows(3))
    assert {row["partition"] for row in found} == keys
    assert all(row["execution_status"] == "PLANNED" and row["evaluation_event"] is None for row in found)


def test_a_planned_range_has_an_event_of_its_own_for_each_partition() -> None:
    keys = {"p", 'q "\\ä', "r"}
    data = AssetMaterializationPlannedData(KEY, partitions_subset=DefaultPartitionsSubset(keys))
    row = EventRow(entry(Kind.ASSET_MATERIALIZATION_PLANNED, data))
    found = {each["partition"]: deserialize_value(each["event"], EventLogEntry) for each in row.log_rows()}
    assert found.keys() == keys
    for key, event in found.items():
        one = entry(
            Kind.ASSET_MATERIALIZATION_PLANNED, AssetMaterializationPlannedData(KEY, partition=key), ""
        )
        assert event == without_origin(one)
    in_run = row.run_row()
    assert in_run["partition"] is None
    read = deserialize_value(in_run["event"], EventLogEntry).get_dagster_event()
    assert read.partitions_subset is not None and set(read.partitions_subset.get_partition_keys()) == keys


def test_rows_are_those_of_the_stock_class(tmp_path: Path) -> None:
    stock = SqliteEventLogStorage(str(tmp_path))
    for kind, data in DATA.values():
        event = entry(kind, data)
        expected = stock._event_to_row(event)
        keys = ["p", "q"] if event.get_dagster_event().partitions_subset else [expected["partition"]]
        found = sorted(EventRow(event).log_rows(), key=lambda row: str(row["partition"]))
        assert [{**row, "event": ""} for row in found] == [
            {**expected, "event": "", "partition": key} for key in keys
        ]
    stock.dispose()


def test_the_tables_are_those_we_know() -> None:
    columns = {
        table.name: {column.name for column in table.columns}
        for table in SqlEventLogStorageMetadata.sorted_tables
    }
    assert columns["event_logs"] == {
        "id", "run_id", "event", "dagster_event_type", "timestamp", "step_key", "asset_key", "partition",
    }  # fmt: skip
    assert columns["asset_check_executions"] == {
        "id", "asset_key", "check_name", "partition", "run_id", "execution_status", "evaluation_event",
        "evaluation_event_timestamp", "evaluation_event_storage_id", "materialization_event_storage_id",
        "create_timestamp",
    }  # fmt: skip


def test_no_event_that_tells_of_a_run_or_an_error_waits() -> None:
    from dagster._core.events import EVENT_TYPE_TO_PIPELINE_RUN_STATUS, FAILURE_EVENTS

    assert not rows.BATCHED & (EVENT_TYPE_TO_PIPELINE_RUN_STATUS.keys() | FAILURE_EVENTS)


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (SqlEventLogStorage, "_store_asset_event_tags", ["conn", "events", "event_ids"]),
        (SqlEventLogStorage, "_store_asset_event", ["conn", "event", "event_id"]),
        (SqlEventLogStorage, "_has_asset_key_col_on_connection", ["conn", "column_name"]),
        (SqlEventLogStorage, "has_secondary_index", ["name"]),
        (SqliteEventLogStorage, "_connect", ["shard"]),
        (SqliteEventLogStorage, "path_for_shard", ["run_id"]),
    ],
)
def test_methods_that_we_call_or_replace_are_still_there(
    owner: type, name: str, parameters: list[str]
) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters)[1:] == parameters


def test_every_read_of_the_stock_classes_goes_through_a_method_that_writes_first() -> None:
    """A new way to the database would miss what waits."""
    source = inspect.getsource(SqliteEventLogStorage)
    # __init__, has_table and _connect, the last of which is replaced
    assert source.count("create_engine(") == 3
    dagster_postgres = pytest.importorskip(
        "dagster_postgres.event_log.event_log", reason="the extra [postgres]"
    )
    source = inspect.getsource(dagster_postgres.PostgresEventLogStorage)
    # `_gen_event_log_entry_from_cursor`, which nobody calls
    assert source.count("self._engine.connect(") == 1


def test_events_of_shards_are_batched_by_default(tmp_path: Path) -> None:
    with dg.instance_for_test(
        temp_dir=str(tmp_path),
        overrides={
            "event_log_storage": {
                "module": "mm_assets.event_log.sqlite",
                "class": "BatchedSqliteEventLogStorage",
            }
        },
    ) as instance:
        assert isinstance(instance.event_log_storage, BatchedSqliteEventLogStorage)
        assert (tmp_path / "history" / "runs" / "index.db").exists()
