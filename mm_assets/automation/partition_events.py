"""The latest event of each partition: ids and runs, no event is read.

Like `mm_assets.io_managers.events`, this uses what Dagster 1.13.27 does not document: the event log's
`get_latest_tags_by_partition`, and ids and runs in the table of events. Its canary is
`mm_assets_tests/automation/test_partition_events.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import dagster as dg
import numpy as np
import numpy.typing as npt
import sqlalchemy as db
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    get_input_data_version_tag,
)
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

_BATCH = 500  # ids per query
_FEW = 2_000  # ids: so many are looked up, more come from the index of runs
_NO_ID = -1  # sentinel below all ids, so that each has a place after it
# Databases that join the ids of a run to one text, however many they are; MySQL cuts it.
_JOINING = frozenset({"sqlite", "postgresql"})


class EventId(NamedTuple):
    """An event of a partition: its storage id, which grows with time, and its run ("" outside of runs)."""

    storage_id: int
    run_id: str


class MadeFrom(NamedTuple):
    """What a materialization says that it was made from: code version, and data version of each input."""

    code_version: str | None
    inputs: Mapping[dg.AssetKey, str]


class _RunsOfEvents(NamedTuple):
    """The run of each event of a log.

    Args:
        names: run ids.
        ids: storage ids, ascending, after `_NO_ID`.
        runs: the place in ``names`` of the run of each.
    """

    names: Sequence[str]
    ids: npt.NDArray[np.int64]
    runs: npt.NDArray[np.int32]


class LatestEvents:
    """The latest event of each partition of an asset, with its run.

    Where many are asked for, the runs of all events come from the database's index of runs: looked up one by
    one, those of 100,000 shards take half a minute.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._storage = _storage(instance)

    def of(self, asset: dg.AssetKey, kind: dg.DagsterEventType) -> dict[str, EventId]:
        """Return the latest event of a kind by partition, for all partitions that have one."""
        ids = self._instance.get_latest_storage_id_by_partition(asset, kind)
        runs = self._runs_of(list(ids.values()))
        return {key: EventId(id_, runs[id_]) for key, id_ in ids.items() if id_ in runs}

    def _runs_of(self, ids: Sequence[int]) -> dict[int, str]:
        """Return the run of each event; none of one that was deleted since its id was read."""
        if len(ids) <= _FEW or not self._is_joining:
            return self._look_up(ids)
        wanted = np.array(ids, dtype=np.int64)
        events = self._runs_of_events
        at = np.searchsorted(events.ids, wanted, side="right") - 1
        is_found = events.ids[at] == wanted
        runs = {
            id_: events.names[run]
            for id_, run in zip(wanted[is_found].tolist(), events.runs[at[is_found]].tolist(), strict=True)
        }
        return runs | self._look_up(wanted[~is_found].tolist())

    @cached_property
    def _is_joining(self) -> bool:
        with self._storage.index_connection() as connection:
            return connection.dialect.name in _JOINING

    @cached_property
    def _runs_of_events(self) -> _RunsOfEvents:
        table = SqlEventLogStorageTable.c
        ids_of_run = db.func.aggregate_strings(db.cast(table.id, db.Text), ",")
        query = db.select(table.run_id, ids_of_run).group_by(table.run_id)
        with self._storage.index_connection() as connection:
            rows = connection.execute(query).all()
        of_run = [np.fromstring(ids, dtype=np.int64, sep=",") for _, ids in rows]
        ids = np.concatenate([[_NO_ID], *of_run])
        runs = np.repeat(np.arange(len(rows) + 1, dtype=np.int32), [1, *(len(ids) for ids in of_run)])
        order = np.argsort(ids, kind="stable")
        return _RunsOfEvents(["", *(run_id for run_id, _ in rows)], ids[order], runs[order])

    def _look_up(self, ids: Sequence[int]) -> dict[int, str]:
        """Return the run of each event that is there."""
        table = SqlEventLogStorageTable.c
        found: dict[int, str] = {}
        with self._storage.index_connection() as connection:
            for start in range(0, len(ids), _BATCH):
                query = db.select(table.id, table.run_id).where(table.id.in_(ids[start : start + _BATCH]))
                found.update((id_, run_id) for id_, run_id in connection.execute(query))
        return found


def latest_versions(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType
) -> dict[str, str]:
    """Return the latest data version by partition."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(asset, kind, [DATA_VERSION_TAG])
    return {key: found[DATA_VERSION_TAG] for key, found in tags.items()}


def made_from(
    instance: dg.DagsterInstance,
    asset: dg.AssetKey,
    storage_ids: Iterable[int],
    inputs: Iterable[dg.AssetKey],
) -> dict[str, MadeFrom]:
    """Return what these materializations were made from, by partition. It reads each event, about
    0.3 ms."""
    tag_of_input = {key: get_input_data_version_tag(key) for key in inputs}
    found: dict[str, MadeFrom] = {}
    ids = list(storage_ids)
    for start in range(0, len(ids), _BATCH):
        batch = dg.AssetRecordsFilter(asset, storage_ids=ids[start : start + _BATCH])
        for record in instance.fetch_materializations(batch, limit=_BATCH).records:
            event = record.asset_materialization
            if event is not None and event.partition is not None:
                tags = event.tags or {}
                versions = {key: tags[tag] for key, tag in tag_of_input.items() if tag in tags}
                found[event.partition] = MadeFrom(tags.get(CODE_VERSION_TAG), versions)
    return found


def runs_in_use(instance: dg.DagsterInstance, assets: Iterable[dg.AssetKey]) -> set[str]:
    """Return the runs that hold the latest event of a partition, or the latest outcome of a check."""
    kinds = (
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
        dg.DagsterEventType.ASSET_OBSERVATION,
    )
    latest = LatestEvents(instance)
    found = {event.run_id for asset in assets for kind in kinds for event in latest.of(asset, kind).values()}
    checks = AssetCheckExecutionsTable.c
    outcomes = db.select(db.func.max(checks.id)).group_by(
        checks.asset_key, checks.check_name, checks.partition
    )
    with _storage(instance).index_connection() as connection:
        query = db.select(checks.run_id).where(checks.id.in_(outcomes)).distinct()
        found.update(row[0] for row in connection.execute(query))
    return found


def _storage(instance: dg.DagsterInstance) -> SqlEventLogStorage:
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise TypeError(
            f"{type(storage).__name__}: only event logs in a database can be asked for partitions"
        )
    return storage
