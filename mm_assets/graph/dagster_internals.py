"""What runs use of Dagster 1.13.27 beyond its documented interface, and the one partition dimension.

`SHARDS` are the partitions of the graph: its keys are the raw shards.

Others are in `mm_assets.graph.instance_queries` (alerts), `mm_assets.automation.backfills`,
`mm_assets.automation`, `mm_assets.event_log` and `mm_assets.graph.resources`, each with canaries of its own.
`headless/` and `automation/sensors.py` import a class or two; how a code server starts runs is replaced in
`mm_assets.definitions`.

The canaries of this module are in `mm_assets_tests/graph/io_manager/test_events.py`. Run them first after an
upgrade of Dagster. They tell which of these no longer holds:

* `MARK` in an output's metadata keeps Dagster from logging its own event for each partition of the run;
* the tags of `provenance` on a logged materialization are the ones that staleness is computed from;
* `instance.get_latest_storage_id_by_partition` finds the latest events of a whole chunk in one query, and
  `SqlEventLogStorage._latest_event_ids_by_partition_subquery` is the query;
* a planned materialization without a later real one in the event log is a failed (or unfinished) attempt;
* an evaluation counts for a partition only while it names the partition's latest materialization (`target`);
  of several rows of a check the one inserted last counts, and a planned row that is never filled in reads
  "Failed" once its run has failed (`withdraw_planned`);
* the asset layer of the running job names the checks that are part of this run;
* a run whose configuration names no logger asks `context_creation_job.default_system_loggers`
  (`set_console_level`);
* events of a step need no more of its context than `event_logger` gives them.

`SeenCodeVersions` keeps, in the key-value store of the instance, which code version of each asset was seen
last, and since when; and the settings that a version stands for, to tell people what has changed. What was
planned after a version was first seen, was made by it. So nobody has to read thousands of events to know that
they all name the present version.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import dagster as dg
import sqlalchemy as db
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    NULL_DATA_VERSION,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION
from dagster._core.events import DagsterEvent
from dagster._core.events.log import EventLogEntry
from dagster._core.execution import context_creation_job
from dagster._core.instance.types import _EventListenerLogHandler
from dagster._core.storage.event_log.schema import SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from mm_assets.graph import Shard

T = TypeVar("T")

# In the metadata of an `Output`: "the events of this output have been logged already". Dagster uses it for
# observable source assets. Without it each shard would get a second, empty event, which comes last and wins.
MARK: str = SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION

# Metadata entry of each event: the shard's URI. Dagster shows it as the asset's.
URI = "dagster/uri"
REASON = "error"  # why a shard did not land, as text
TRIED_WITH = "tried_with"  # by which code, settings and limit it did not

_MADE = dg.DagsterEventType.ASSET_MATERIALIZATION
# Events of an attempt on a partition: that it is planned, and that it has failed.
_ATTEMPT = (dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED, dg.DagsterEventType.ASSET_OBSERVATION)

# Statuses of runs that work, and of all that have been launched and have not ended.
WORKING = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
UNFINISHED = (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *WORKING)

# Storage ids or keys per query: SQLite refuses statements with too many variables.
_BATCH = 500


@dataclass(frozen=True)
class Latest:
    """The latest event of one partition.

    Args:
        pointer: its storage id.
        version: the data version.
        timestamp: seconds since 1970.
        metadata: plain values by name.
    """

    pointer: int
    version: str
    run_id: str
    timestamp: float
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def uri(self) -> str:
        return str(self.metadata.get(URI, ""))


def set_console_level(level: str) -> None:
    """Have runs print what is of this level or above; Dagster's own is DEBUG. The event log has all of it.

    A logger of the code location would need naming in the configuration of each run, and ``python_log_level``
    of ``dagster.yaml`` keeps messages out of the event log, too.
    """

    def loggers(
        instance: dg.DagsterInstance | None,
    ) -> list[tuple[dg.LoggerDefinition, dict[str, object]]]:
        stock = dg.default_system_loggers(instance)
        return [(each, {**config, "log_level": level.upper()}) for each, config in stock]

    context_creation_job.default_system_loggers = loggers  # type: ignore[attr-defined]


def event_logger(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> Callable[[Any], None]:
    """Return the ``log_event`` of a step, at half its cost where no logger prints events.

    Dagster makes two records of Python's logging of each event before it asks loggers for their level.
    """
    op = context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context
    step, instance = op._step_execution_context, context.instance
    handler, key, job = step.log._dagster_handler, step.step.key, step.job_name
    is_printed = any(logger.isEnabledFor(logging.DEBUG) for logger in handler._loggers)
    if is_printed or not all(type(each) is _EventListenerLogHandler for each in handler._handlers):
        return context.log_event

    def store(level: int, msg: str, dagster_event: DagsterEvent, batch_metadata: object) -> None:
        now = time.time()
        entry = EventLogEntry(None, level, msg, op.run_id, now, key, job, dagster_event)  # type: ignore[no-untyped-call]
        instance.handle_new_event(entry)

    log = SimpleNamespace(log_dagster_event=store)
    quiet: Any = SimpleNamespace(step=step.step, job_name=job, event_tags=step.event_tags, log=log)
    make: dict[type, Callable[[Any, Any], DagsterEvent]] = {
        dg.AssetMaterialization: DagsterEvent.asset_materialization,
        dg.AssetObservation: DagsterEvent.asset_observation,
        dg.AssetCheckEvaluation: DagsterEvent.asset_check_evaluation,
    }
    return lambda event: op._events.append(make[type(event)](quiet, event))


def observed_version(version: str) -> dict[str, str]:
    """Return the tags of an `AssetObservation` that give the partition this data version."""
    return {DATA_VERSION_TAG: version}


def provenance(version: str, code_version: str, parents: Mapping[str, Shard]) -> dict[str, str]:
    """Return the tags of a materialization: its data version, and version and event of each parent.

    Staleness of a partition compares the parent's version *at the pointer* with its latest one, so a parent
    without pointer never makes it stale. Without the code version Dagster sees no provenance at all and
    compares times.
    """
    tags = {
        DATA_VERSION_TAG: version,
        DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
        CODE_VERSION_TAG: code_version,
    }
    for asset, shard in parents.items():
        key = dg.AssetKey.from_user_string(asset)
        tags[get_input_data_version_tag(key)] = shard.version or NULL_DATA_VERSION.value
        tags[get_input_event_pointer_tag(key)] = (
            NULL_EVENT_POINTER if shard.pointer is None else str(shard.pointer)
        )
    return tags


def latest_materializations(
    instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Iterable[str]
) -> dict[str, Latest]:
    """Return the latest materialization of each of these partitions that has one."""
    return _latest_events(instance, asset, dg.DagsterEventType.ASSET_MATERIALIZATION, keys)


def latest_observations(
    instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Iterable[str]
) -> dict[str, Latest]:
    """Return the latest observation of each of these partitions that has one."""
    return _latest_events(instance, asset, dg.DagsterEventType.ASSET_OBSERVATION, keys)


def target(latest: Latest | None) -> AssetCheckEvaluationTargetMaterializationData | None:
    """Return the reference of an evaluation to the materialization that it is about.

    Without it the UI shows the evaluation as outdated.
    """
    if latest is None:
        return None
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=latest.pointer, run_id=latest.run_id, timestamp=latest.timestamp
    )


def targets(
    instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Iterable[str]
) -> dict[str, AssetCheckEvaluationTargetMaterializationData]:
    """Return, for each of these partitions that has one, the reference to its latest materialization."""
    found: dict[str, AssetCheckEvaluationTargetMaterializationData] = {}
    log, row = instance.event_log_storage, SqlEventLogStorageTable.c
    assert isinstance(log, SqlEventLogStorage), "an event log in a database"
    kinds = [dg.DagsterEventType.ASSET_MATERIALIZATION]
    for batch in batches(list(keys)):
        latest = log._latest_event_ids_by_partition_subquery(asset, kinds, asset_partitions=batch)
        query = db.select(row.id, row.partition, row.run_id, row.timestamp).where(
            row.id.in_(db.select(latest.c.id))
        )
        with log.index_connection() as connection:
            rows = connection.execute(query).fetchall()
        for storage_id, partition, run_id, at in rows:
            found[partition] = AssetCheckEvaluationTargetMaterializationData(
                storage_id=storage_id, run_id=run_id, timestamp=at.replace(tzinfo=UTC).timestamp()
            )
    return found


def latest_of_asset(instance: dg.DagsterInstance, asset: dg.AssetKey) -> Latest | None:
    """Return the latest materialization of any partition; an evaluation over all partitions must name it."""
    for found in instance.get_asset_records([asset]):
        record = found.asset_entry.last_materialization_record
        if record is not None and (made := record.asset_materialization) is not None:
            version = (made.tags or {}).get(DATA_VERSION_TAG, "")
            metadata = {name: value.value for name, value in made.metadata.items()}
            return Latest(record.storage_id, version, record.run_id, record.timestamp, metadata)
    return None


def attempts_without_result(
    instance: dg.DagsterInstance,
    asset: dg.AssetKey,
    keys: Iterable[str] | None = None,
    run_ids: Iterable[str] | None = None,
    *,
    but: Iterable[str] = (),
) -> dict[str, str]:
    """Return the partitions that runs have tried to make and none has materialized since, with the last run.

    A run has tried a partition when it planned it, and when it observed that it failed (`ShardReports`): what
    another run made in between does not mend that. What runs that are not asked for have tried changes
    nothing.

    Args:
        keys: these partitions; None: all of the asset.
        run_ids: attempts of these runs; None: of all.
        but: attempts of these runs do not count.
    """
    asked, not_asked = None if run_ids is None else set(run_ids), set(but)
    log, row = instance.event_log_storage, SqlEventLogStorageTable.c
    assert isinstance(log, SqlEventLogStorage), "an event log in a database"
    made = _open_partitions(instance, asset, keys)
    last = db.func.max(row.id).label("last")
    is_planned = db.func.min(row.dagster_event_type) == _ATTEMPT[0].value  # not what others have observed
    found: dict[str, str] = {}
    for batch in batches(sorted(made)):
        query = db.select(row.partition, row.run_id, last).where(
            row.asset_key == asset.to_string(),
            row.dagster_event_type.in_([kind.value for kind in _ATTEMPT]),
            row.partition.in_(batch),
        )
        query = log._add_assets_wipe_filter_to_query(query, log._get_assets_details([asset]), [asset])
        query = query.group_by(row.partition, row.run_id).having(is_planned).order_by(last)
        with log.index_connection() as connection:
            rows = connection.execute(query).fetchall()
        for key, run_id, id_ in rows:
            is_asked = run_id not in not_asked and (asked is None or run_id in asked)
            if is_asked and id_ > made[key]:
                found[key] = run_id
    return found


def _open_partitions(
    instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Iterable[str] | None
) -> dict[str, int]:
    """Return the partitions with an attempt after the latest materialization, with its storage id, or -1.

    The database compares: of thousands of partitions few are open.
    """
    log, row = instance.event_log_storage, SqlEventLogStorageTable.c
    assert isinstance(log, SqlEventLogStorage), "an event log in a database"
    kind = row.dagster_event_type
    made = db.func.coalesce(db.func.max(db.case((kind == _MADE.value, row.id))), -1)
    tried = db.func.max(db.case((kind != _MADE.value, row.id)))
    query = db.select(row.partition, made).where(
        row.asset_key == asset.to_string(),
        kind.in_([each.value for each in (_MADE, *_ATTEMPT)]),
        row.partition.isnot(None),
    )
    wiped = log._get_assets_details([asset])
    query = log._add_assets_wipe_filter_to_query(query, wiped, [asset])
    query = query.group_by(row.partition).having(tried > made)
    asked = (
        [query] if keys is None else [query.where(row.partition.in_(batch)) for batch in batches(list(keys))]
    )
    with log.index_connection() as connection:
        return {key: id_ for each in asked for key, id_ in connection.execute(each)}


def not_landed(instance: dg.DagsterInstance, asset: dg.AssetKey, ended: Iterable[str] = ()) -> list[str]:
    """Return the partitions of an asset that a run which has ended could not make, and none has made since.

    That one of them is being made again changes nothing.

    Args:
        ended: ids of runs that count as ended: the one that asks.
    """
    unfinished: set[str] = set()
    while True:
        found = attempts_without_result(instance, asset, but=unfinished)
        # Asked afterwards: a run may be launched meanwhile.
        new = {run.run_id for run in unfinished_runs(instance)}.intersection(found.values()) - set(ended)
        if not new:
            return sorted(found)
        unfinished |= new


def unfinished_runs(
    instance: dg.DagsterInstance, tags: Mapping[str, str] | None = None, limit: int | None = None
) -> Sequence[dg.DagsterRun]:
    """Return the latest runs, all or those with these tags, that have been launched and have not ended."""
    return instance.get_runs(dg.RunsFilter(statuses=UNFINISHED, tags=tags), limit=limit)


def family(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[dg.DagsterRun]:
    """Return the run and the runs it re-executes.

    A re-execution "from failure" may consist of nothing but the failed check.
    """
    group = instance.get_run_group(run.run_id)
    return list(group[1]) if group else [run]


def keys_of_run(
    run: dg.DagsterRun, partitions_def: dg.PartitionsDefinition, instance: dg.DagsterInstance
) -> list[str]:
    """Return the partition keys a run was launched for, from its tags; empty for a run without.

    Ranges follow the order in which dynamic partitions were added, not the alphabet, and include whatever was
    added in between. A range whose end was added before its start is empty, without an error.
    """
    single = run.tags.get(PARTITION_NAME_TAG)
    first, last = (
        run.tags.get(ASSET_PARTITION_RANGE_START_TAG, single),
        run.tags.get(ASSET_PARTITION_RANGE_END_TAG, single),
    )
    if first is None or last is None:
        return []
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        return sorted(partitions_def.get_partition_keys_in_range(dg.PartitionKeyRange(first, last)))


def run_of(context: dg.InputContext) -> dg.DagsterRun | None:
    """Return the run that loads an input; None outside of runs (`load_asset_value`, tests)."""
    try:
        return context.step_context.dagster_run
    except dg.DagsterInvariantViolationError:
        return None


def asset_step() -> dg.AssetExecutionContext | None:
    """Return the asset step that is being executed; None outside of one (also within the step of a check)."""
    try:
        return dg.AssetExecutionContext.get()
    except dg.DagsterInvariantViolationError:
        return None


def runs_check(run: dg.AssetExecutionContext, check: dg.AssetCheckKey) -> bool:
    """Return whether this run executes that check."""
    return any(check in data.assets_def.check_keys for data in run.job_def.asset_layer.data)


def makes_asset(context: dg.AssetCheckExecutionContext, asset: dg.AssetKey) -> bool:
    """Return whether this run also materializes the asset that a check is about."""
    return any(
        asset in data.assets_def.keys
        for data in context.job_def.asset_layer.data
        if data.assets_def.is_executable
    )


def _storage_ids(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType, keys: Iterable[str]
) -> dict[str, int]:
    found: dict[str, int] = {}
    for batch in batches(list(keys)):
        found.update(instance.get_latest_storage_id_by_partition(asset, kind, set(batch)))
    return found


def _latest_events(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType, keys: Iterable[str]
) -> dict[str, Latest]:
    """Return the latest event of this kind of each partition."""
    found: dict[str, Latest] = {}
    for told in read_events(instance, _storage_ids(instance, asset, kind, keys).values()):
        metadata = {entry["label"]: _plain(entry) for entry in told.entries}
        version = told.tags.get(DATA_VERSION_TAG, "")
        found[told.partition] = Latest(told.storage_id, version, told.run_id, told.timestamp, metadata)
    return found


class LoggedEvent(NamedTuple):
    """A materialization or observation of a partition as its row has it; ``entries`` are its metadata."""

    storage_id: int
    partition: str
    run_id: str
    timestamp: float
    tags: Mapping[str, str]
    entries: Sequence[Mapping[str, Any]]


def read_events(instance: dg.DagsterInstance, storage_ids: Iterable[int]) -> Iterator[LoggedEvent]:
    """Yield these materializations and observations of partitions.

    Their rows are read as JSON: to make objects of everything in them would cost ten times as much.
    """
    log, row = instance.event_log_storage, SqlEventLogStorageTable.c
    assert isinstance(log, SqlEventLogStorage), "an event log in a database"
    for ids in batches(list(storage_ids)):
        query = db.select(row.id, row.partition, row.run_id, row.event).where(row.id.in_(ids))
        with log.index_connection() as connection:
            rows = connection.execute(query).fetchall()
        for storage_id, partition, run_id, text in rows:
            entry = json.loads(text)
            (event,) = (
                value
                for name, value in entry["dagster_event"]["event_specific_data"].items()
                if name in ("materialization", "asset_observation")
            )
            tags, entries = event["tags"] or {}, event["metadata_entries"]
            yield LoggedEvent(storage_id, partition, run_id, entry["timestamp"], tags, entries)


def _plain(entry: Mapping[str, Any]) -> Any:
    """Return the value of a metadata entry, which its row has plain or packed by Dagster's own class."""
    packed = entry.get("value", entry.get("entry_data"))
    if isinstance(packed, dict) and "__class__" in packed:
        return next((value for name, value in packed.items() if name != "__class__"), None)
    return packed


def batches(items: list[T]) -> Iterator[list[T]]:
    """Yield as many as one query takes."""
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


_KEY = "mm_assets/code_version/"
_SETTINGS_KEY = "mm_assets/settings/"

# Metadata of an asset: what it is made by, in readable form.
SETTINGS = "settings"

# Tag of an asset: a setting that refuses shards, but changes no byte of those that land.
LIMIT_TAG = "mm_assets/max_loss"
# Metadata of an asset: the inputs that it reads nothing of with the present settings (`Plan.unread`).
UNREAD = "mm_assets/unread"


def tried_with(code_version: str | None, limit: str | None) -> str:
    """Return what has to change, or the raw shard, before one lands that has failed for its content."""
    return ", ".join(filter(None, (code_version, limit)))


class SeenCodeVersion(NamedTuple):
    """A code version of an asset.

    ``since`` is the latest storage id of an event when it was first seen. ``is_confirmed``: what was made
    before names it, too. ``is_change``: the asset had another version before.
    """

    version: str | None
    since: int
    is_confirmed: bool = False
    is_change: bool = False


class SeenCodeVersions:
    """The code version of each asset that was last seen, by a run or by one who looks for stale shards.

    Args:
        is_noted: whether what is seen now is noted for the next look.
    """

    def __init__(self, instance: dg.DagsterInstance, is_noted: bool = True) -> None:
        self._instance = instance
        self._is_noted = is_noted

    def see(
        self, asset: dg.AssetKey, version: str | None, settings: Mapping[str, Any] | None = None
    ) -> SeenCodeVersion:
        """Return since when an asset has this version; note it now if the last one was another.

        A run with other settings, by the launchpad or in another process, notes its own: then all partitions
        are looked at again.

        Args:
            settings: what the version stands for (`readable_settings`), kept for `settings`.
        """
        known = self._read(asset)
        if known is None or known.version != version:
            now = self._instance.event_log_storage.get_maximum_record_id() or 0
            known = SeenCodeVersion(version, now, is_change=known is not None)
            self._write(asset, known)
        if settings and not self.settings(asset, version):
            self._note(_of_version(asset, version), settings)
        return known

    def settings(self, asset: dg.AssetKey, version: str | None) -> dict[str, Any]:
        """Return what a version stands for; nothing if it was not seen since this is kept."""
        key = _of_version(asset, version)
        text = self._instance.run_storage.get_cursor_values({key}).get(key)
        return dict(json.loads(text)) if text else {}

    def see_limit(self, asset: dg.AssetKey, limit: str) -> SeenCodeVersion:
        """Return since when shards of an asset are refused by this limit; as `see`."""
        return self.see(dg.AssetKey([*asset.path, LIMIT_TAG]), limit)

    def confirm(self, asset: dg.AssetKey, seen: SeenCodeVersion) -> None:
        """Note that every partition of the asset names this version."""
        if self._read(asset) == seen:  # else a run has made some by another one in the meantime
            self._write(asset, seen._replace(is_confirmed=True))

    def _read(self, asset: dg.AssetKey) -> SeenCodeVersion | None:
        key = _KEY + asset.to_user_string()
        text = self._instance.run_storage.get_cursor_values({key}).get(key)
        return SeenCodeVersion(*json.loads(text)) if text else None

    def _write(self, asset: dg.AssetKey, seen: SeenCodeVersion) -> None:
        self._note(_KEY + asset.to_user_string(), seen)

    def _note(self, key: str, value: Any) -> None:
        if self._is_noted:
            self._instance.run_storage.set_cursor_values({key: json.dumps(value)})


def _of_version(asset: dg.AssetKey, version: str | None) -> str:
    return f"{_SETTINGS_KEY}{asset.to_user_string()}/{version}"


# Partition keys are relative paths of raw shards; the sensor adds them. Ranges follow the order of addition,
# not the alphabet.
SHARDS = dg.DynamicPartitionsDefinition(name="shards")

# Shards per run of a backfill. A run costs about 10 s to launch, so one per shard is slow; each partitioned
# check stores the run's whole key set per shard, so 1,000 is heavy on the database (24 MB a check and run).
CHUNK_SHARDS = 100

# Pool of the steps that commit to the Lance table. Of two commits at once one is done again; where
# `dagster.yaml` limits pools, the other step waits instead.
LANCE_POOL = "lance_table"


def chunks(keys: Iterable[str], order: Sequence[str], size: int = CHUNK_SHARDS) -> list[list[str]]:
    """Return partitions in chunks for one run each: neighbours, as a run takes a range of partitions.

    Args:
        keys: some of ``order``.
        order: all partitions, as they were added.
        size: largest number of partitions in a chunk.
    """
    positions = {key: position for position, key in enumerate(order)}
    found: list[list[str]] = []
    last = -2
    for position in sorted(positions[key] for key in set(keys)):
        if position != last + 1 or len(found[-1]) == size:
            found.append([])
        found[-1].append(order[position])
        last = position
    return found


def delete_partitions(instance: dg.DagsterInstance, keys: Iterable[str]) -> list[str]:
    """Delete partitions from an instance, and return those that it had; their events stay in its log."""
    known = set(instance.get_dynamic_partitions(str(SHARDS.name)))
    deleted = [key for key in keys if key in known]
    for key in deleted:
        instance.delete_dynamic_partition(str(SHARDS.name), key)
    return deleted
