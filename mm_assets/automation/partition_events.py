"""The latest event of each partition, in one query an asset: ids and runs, no event is read.

Like `mm_assets.io_managers.events`, this uses what Dagster 1.13.27 does not document: the event log's
`get_latest_tags_by_partition`, its query of the latest event of each partition, and ids and runs in the table
of events. Its canary is `mm_assets_tests/automation/test_partition_events.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import dagster as dg
import sqlalchemy as db
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    get_input_data_version_tag,
)
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

_BATCH = 500  # ids per query


class EventId(NamedTuple):
    """An event of a partition: its storage id, which grows with time, and its run ("" outside of runs)."""

    storage_id: int
    run_id: str


class MadeFrom(NamedTuple):
    """What a materialization says that it was made from: code version, and data version of each input."""

    code_version: str | None
    inputs: Mapping[dg.AssetKey, str]


def latest_events(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType
) -> dict[str, EventId]:
    """Return the latest event of a kind by partition, for all partitions that have one."""
    storage = _storage(instance)
    latest = storage._latest_event_ids_by_partition_subquery(asset, [kind])
    table = SqlEventLogStorageTable.c
    query = db.select(latest.c.partition, table.id, table.run_id).where(table.id == latest.c.id)
    with storage.index_connection() as connection:
        return {key: EventId(*event) for key, *event in connection.execute(query)}


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
    found = {
        event.run_id
        for asset in assets
        for kind in kinds
        for event in latest_events(instance, asset, kind).values()
    }
    checks = AssetCheckExecutionsTable.c
    latest = db.select(db.func.max(checks.id)).group_by(checks.asset_key, checks.check_name, checks.partition)
    with _storage(instance).index_connection() as connection:
        query = db.select(checks.run_id).where(checks.id.in_(latest)).distinct()
        found.update(row[0] for row in connection.execute(query))
    return found


def _storage(instance: dg.DagsterInstance) -> SqlEventLogStorage:
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise TypeError(
            f"{type(storage).__name__}: only event logs in a database can be asked for partitions"
        )
    return storage
