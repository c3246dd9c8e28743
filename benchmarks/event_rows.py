"""Rows of some partitions in an event log, to be stored again for others: a database as after many runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_POINTER = "dagster/input_event_pointer/"
_NEXT_ID = "SELECT setval(pg_get_serial_sequence('event_logs', 'id'), (SELECT max(id) FROM event_logs))"


class EventRows:
    """What the database has of some partitions: events, their tags, and evaluations of checks."""

    def __init__(self, instance: Any, partitions: Sequence[str]) -> None:
        import sqlalchemy as db
        from dagster._core.storage.event_log import SqlEventLogStorageTable
        from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetEventTagsTable

        self._log = instance.event_log_storage
        self._tables = (SqlEventLogStorageTable, AssetEventTagsTable, AssetCheckExecutionsTable)
        events, tags, checks = self._tables
        of_partitions = events.c.partition.in_(list(partitions))
        of_events = tags.c.event_id.in_(db.select(events.c.id).where(of_partitions))
        of_checks = checks.c.partition.in_(list(partitions))
        queries = ((events, of_partitions), (tags, of_events), (checks, of_checks))
        with self._log.index_connection() as connection:
            self._events, self._tags, self._checks = (
                [dict(row._mapping) for row in connection.execute(db.select(table).where(condition))]
                for table, condition in queries
            )
            last = connection.execute(db.select(db.func.max(events.c.id))).scalar_one()
        self._partition_of = {row["id"]: row["partition"] for row in self._events}
        self._ids = max(self._partition_of) - min(self._partition_of) + 1
        self._unused = last - max(self._partition_of)

    def store(
        self, names: Mapping[str, str], number: int, versions: Mapping[str, tuple[str, str]] | None = None
    ) -> int:
        """Store the rows once more; return how many they are.

        Args:
            names: the other name of each partition.
            number: of this copy, from 1: it sets the ids of its events apart.
            versions: of the raw shard of each partition, and of that with the other name.
        """
        import sqlalchemy as db

        shift = self._unused + number * self._ids
        replaced = {key: [(key, name), *([versions[key]] if versions else [])] for key, name in names.items()}

        def renamed(text: str | None, partition: str) -> str | None:
            for old, new in replaced[partition] if text else ():
                text = text.replace(old, new) if text else text
            return text

        def shifted(id_: int | None) -> int | None:
            return id_ and id_ + shift

        events = [
            {
                **row,
                "id": shifted(row["id"]),
                "event": renamed(row["event"], row["partition"]),
                "partition": names[row["partition"]],
            }
            for row in self._events
        ]
        tags = [
            {
                **{name: value for name, value in row.items() if name != "id"},
                "event_id": shifted(row["event_id"]),
                "value": str(shifted(int(row["value"])))
                if row["key"].startswith(_POINTER) and row["value"].isdecimal()
                else renamed(row["value"], self._partition_of[row["event_id"]]),
            }
            for row in self._tags
        ]
        checks = [
            {
                **{name: value for name, value in row.items() if name != "id"},
                "evaluation_event": renamed(row["evaluation_event"], row["partition"]),
                "evaluation_event_storage_id": shifted(row["evaluation_event_storage_id"]),
                "materialization_event_storage_id": shifted(row["materialization_event_storage_id"]),
                "partition": names[row["partition"]],
            }
            for row in self._checks
        ]
        with self._log.index_connection() as connection:
            for table, rows in zip(self._tables, (events, tags, checks), strict=True):
                connection.execute(table.insert(), rows)
            if connection.dialect.name == "postgresql":
                connection.execute(db.text(_NEXT_ID))
        return len(events) + len(tags) + len(checks)
