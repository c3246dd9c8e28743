"""Batched writing of events, on top of one of Dagster's own storage classes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as db
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log import SqlEventLogStorage, SqlEventLogStorageTable
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from sqlalchemy import Connection

from mm_assets.event_log.buffer import WriteBuffer
from mm_assets.event_log.rows import EventRow, is_batched

_EXECUTIONS = AssetCheckExecutionsTable.c
# Partitions in one query: SQLite refuses statements with too many variables.
_MAX_VARIABLES = 500
_ATTEMPTS = 10  # of several processes that add the same partitions


class BatchedEventLog(SqlEventLogStorage):
    """Mixin for a SQL event log: events that a run has for each shard are written many at a time.

    Any other event, any read through this object, `dispose` and the end of the process write what waits. Any
    other reader sees an event half a second late at most, which is also what a killed process loses.

    Subclasses call `_start_batching` when they are ready to write, and `flush` before they connect.
    """

    _buffer: WriteBuffer[EventRow]

    def _start_batching(self) -> None:
        self._tables: set[str] = set()
        self._migrations: set[str] = set()
        self._buffer = WriteBuffer(self._write)

    def flush(self) -> None:
        """Write what waits.

        Raises:
            Exception: what the database raises. Nothing is lost: the events wait for the next attempt.
        """
        self._buffer.flush()

    def store_event(self, event: EventLogEntry) -> None:
        """Store an event, soon or at once."""
        if is_batched(event):
            self._buffer.add(EventRow(event))
        else:
            self.flush()
            super().store_event(event)

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Store events, soon or at once."""
        for event in events:
            self.store_event(event)

    def dispose(self) -> None:
        """Write what waits, then close all connections."""
        self.flush()
        super().dispose()

    def has_table(self, table_name: str) -> bool:
        """Return whether a table exists; what has been found once is not looked for again."""
        if table_name not in self._tables:
            if not super().has_table(table_name):  # type: ignore[safe-super]
                return False
            self._tables.add(table_name)
        return True

    def add_dynamic_partitions(self, partitions_def_name: str, partition_keys: Sequence[str]) -> None:
        """Add keys that are not there yet.

        The stock class looks which are there, then adds the others: what another process has added in between
        is seen when it looks again.
        """
        for attempt in range(_ATTEMPTS, 0, -1):
            try:
                super().add_dynamic_partitions(partitions_def_name, partition_keys)
            except db.exc.IntegrityError:
                if attempt == 1:
                    raise
            else:
                return

    def has_secondary_index(self, name: str) -> bool:
        """Return whether a migration has been completed; it is never undone."""
        if name not in self._migrations and super().has_secondary_index(name):
            self._migrations.add(name)
        return name in self._migrations

    @abstractmethod
    def _write(self, rows: list[EventRow]) -> None:
        """Write events in their order, all or none of them in each database."""

    @abstractmethod
    def _next_ids(self, connection: Connection, count: int) -> list[int]:
        """Return so many unused ids for the event log, larger than any that another reader may have seen.

        No other process adds events until the end of the transaction: the order of ids is that of commits, so
        that a cursor misses nothing.
        """

    def _write_index(self, connection: Connection, rows: Sequence[EventRow]) -> None:
        """Write what readers over all runs see, within one transaction."""
        if not rows:
            return
        logged = [row for row in rows if row.is_logged]
        new_ids = self._next_ids(connection, max(len(logged), 1))
        ids = dict(zip(map(id, logged), new_ids, strict=False))
        if logged:
            connection.execute(
                SqlEventLogStorageTable.insert(), [{"id": ids[id(row)], **row.log_row()} for row in logged]
            )
        self._write_assets(connection, [row for row in logged if row.is_asset], ids)
        # Of a check without a row of its own the id is that of the last row in this transaction: all a reader
        # does with it is to ask what is newer than it has seen.
        last = new_ids[-1] if logged else new_ids[0] - 1
        self._write_checks(connection, [(row, ids.get(id(row), last)) for row in rows if row.is_check])

    def _write_assets(self, connection: Connection, rows: Sequence[EventRow], ids: dict[int, int]) -> None:
        """Write tags, and for each asset its newest event of each kind."""
        if not rows:
            return
        self._store_asset_event_tags(connection, [row.event for row in rows], [ids[id(row)] for row in rows])
        newest = {(row.asset, row.kind): row for row in rows}
        for row in sorted(newest.values(), key=lambda row: ids[id(row)]):
            self._store_asset_event(connection, row.event, ids[id(row)])

    def _write_checks(self, connection: Connection, rows: Iterable[tuple[EventRow, int]]) -> None:
        """Write planned checks, and evaluations in the place of the plan, if there is one."""
        planned: list[dict[str, Any]] = []
        evaluated: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row, event_id in rows:
            if row.planned_check is not None:
                planned.extend(row.planned_rows(event_id))
            else:
                values = row.evaluated_row(event_id)
                # The same check of the same shard again: the later one counts.
                evaluated[_place(values)] = values
        if planned:
            connection.execute(self._insert_or_ignore(), planned)
        if evaluated:
            self._write_evaluated(connection, evaluated)

    def _write_evaluated(
        self, connection: Connection, evaluated: dict[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        updates: list[dict[str, Any]] = []
        inserts: list[dict[str, Any]] = []
        found = self._find_planned(connection, evaluated)
        for place, values in evaluated.items():
            row_ids = found.get(place)
            if row_ids:
                updates.extend({"row_id": row_id, **values} for row_id in row_ids)
            else:
                inserts.append(values)
        if updates:
            names = next(iter(evaluated.values()))
            connection.execute(
                AssetCheckExecutionsTable.update()
                .where(_EXECUTIONS.id == db.bindparam("row_id"))
                .values({name: db.bindparam(name) for name in names}),
                updates,
            )
        if inserts:
            connection.execute(AssetCheckExecutionsTable.insert(), inserts)

    def _find_planned(
        self, connection: Connection, places: Iterable[tuple[Any, ...]]
    ) -> dict[tuple[Any, ...], list[int]]:
        """Return the ids of rows that a run has for these checks and partitions."""
        partitions: dict[tuple[str, str, str], list[str | None]] = {}
        for asset, check, run_id, partition in places:
            partitions.setdefault((asset, check, run_id), []).append(partition)
        found: dict[tuple[Any, ...], list[int]] = {}
        for (asset, check, run_id), keys in partitions.items():
            for start in range(0, len(keys), _MAX_VARIABLES):
                some = keys[start : start + _MAX_VARIABLES]
                query = db.select(_EXECUTIONS.id, _EXECUTIONS.partition).where(
                    _EXECUTIONS.asset_key == asset,
                    _EXECUTIONS.check_name == check,
                    _EXECUTIONS.run_id == run_id,
                    db.or_(
                        _EXECUTIONS.partition.in_([key for key in some if key is not None]),
                        _EXECUTIONS.partition.is_(None) if None in some else db.false(),
                    ),
                )
                for row_id, partition in connection.execute(query):
                    found.setdefault((asset, check, run_id, partition), []).append(row_id)
        return found

    @abstractmethod
    def _insert_or_ignore(self) -> Any:
        """Return an insert of planned checks that leaves those alone that have been evaluated already."""


def _place(values: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in ("asset_key", "check_name", "run_id", "partition"))
