"""Event logs of Dagster that write many events in one transaction, on top of Dagster's own storage classes.

The stock classes can read what they write; in the log of a run on SQLite they find materializations without
metadata, which the index has. They are configured as ``event_log_storage`` in
``dagster.yaml``. Without that, Dagster's own class works on the same databases.

`WriteBuffer` keeps things that are written together, until enough have gathered or the first has waited
enough. It knows neither Dagster nor databases. `Engines` are database engines that are kept open, and never
shared with a process that was forked off. `BatchedEventLog` is the mixin for a storage class: it writes what
the buffer gathered in one transaction.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import sqlalchemy as db
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log import SqlEventLogStorage, SqlEventLogStorageTable
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from sqlalchemy import Connection, Engine

from mm_assets.event_log.rows import EventRow, is_batched
from mm_assets.model.errors import MmAssetsError

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_ITEMS = 500
MAX_SECONDS = 0.5
MAX_BACK_OFF = 30.0  # seconds between two attempts after many errors


class NotWritten(MmAssetsError, OSError):
    """What waits could not be written. It is kept, and tried again.

    Args:
        count: how many events wait.
        reason: one line.
    """

    def __init__(self, count: int, reason: str) -> None:
        super().__init__(reason)
        self.count = count
        self.reason = reason

    def __str__(self) -> str:
        return f"events cannot be written, {self.count} wait in memory: {self.reason}"


class WriteBuffer(Generic[T]):
    """Items in the order in which they came, until `write` has taken them.

    Nothing is lost by an error: the items stay, and are tried again after half a second, then after twice as
    long each time, and whenever somebody flushes. One line of the log, and one of those who add, are told of
    it; whoever flushes is told each time. A process that forks keeps its items, the new process begins
    without any.

    Args:
        write: writes items in their order. After an error it gets the same items again, with those that came
            since.
        max_items: write when there are so many.
        max_seconds: and when the first has waited for so long.
    """

    def __init__(
        self, write: Callable[[list[T]], None], max_items: int = MAX_ITEMS, max_seconds: float = MAX_SECONDS
    ) -> None:
        self._write = write
        self._max_items = max_items
        self._max_seconds = max_seconds
        self._reset()
        _buffers.add(self)

    def _reset(self) -> None:
        self._items: list[T] = []
        self._timer: threading.Timer | None = None
        self._failures = 0  # since something was written
        self._is_told = False  # whether somebody who adds knows of them
        self._lock = threading.Lock()  # of the fields above
        self._writing = threading.Lock()
        self._writer: int | None = None  # the thread that holds `_writing`

    def add(self, item: T) -> None:
        """Keep an item; write all if it is time.

        Raises:
            NotWritten: what waits cannot be written; raised once until it can. The item is kept all the same.
        """
        with self._lock:
            self._items.append(item)
            # Items that cannot be written are not tried again for each that comes: only to tell of it.
            is_due = not self._is_told if self._failures else len(self._items) >= self._max_items
            if not is_due:
                self._start_timer()
        if is_due:
            try:
                self.flush()
            except NotWritten:
                with self._lock:
                    self._is_told = self._failures > 0
                raise

    def flush(self) -> None:
        """Write all items; nothing while `write` of this very thread is at work.

        Raises:
            NotWritten: what waits cannot be written. The items are kept.
        """
        if self._writer == threading.get_ident() or not (self._items or self._writing.locked()):
            return
        with self._writing:  # who comes to read waits for a writing thread
            with self._lock:
                items, self._items = self._items, []
            if not items:
                return
            self._writer = threading.get_ident()
            try:
                self._write(items)
            except Exception as error:
                raise self._keep(items, error) from error
            except BaseException:
                self._keep(items)
                raise
            finally:
                self._writer = None
            self._recover(len(items))

    def show(self, look: Callable[[list[T]], None]) -> None:
        """Have ``look`` see all items, which stay. Raises as `flush`."""
        if self._writer == threading.get_ident() or not (self._items or self._writing.locked()):
            return
        with self._writing:
            with self._lock:
                items = list(self._items)
            self._writer = threading.get_ident()
            try:
                look(items)
            except Exception as error:
                raise self._keep([], error) from error
            finally:
                self._writer = None

    def _keep(self, items: list[T], error: Exception | None = None) -> NotWritten:
        """Put items back that were not written. Return what to raise; the first time it is logged, too."""
        # The further lines of a database's error are the statement, and the values of hundreds of rows.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        with self._lock:
            self._items = items + self._items
            if error is not None:
                self._failures += 1
            self._start_timer()
            problem = NotWritten(len(self._items), reason)
        if error is not None and self._failures == 1:
            log.error("%s", problem)
        return problem

    def _recover(self, count: int) -> None:
        with self._lock:
            failures, self._failures, self._is_told = self._failures, 0, False
        if failures:
            log.warning("events can be written again, %d had waited in memory", count)

    def _start_timer(self) -> None:
        if self._timer is None:
            seconds = self._max_seconds
            if self._failures:
                seconds = max(seconds, min(seconds * 2 ** min(self._failures - 1, 30), MAX_BACK_OFF))
            self._timer = threading.Timer(seconds, self._flush_late)
            self._timer.daemon = True
            self._timer.start()

    def _flush_late(self) -> None:
        with self._lock:
            self._timer = None
        with suppress(NotWritten):  # it is logged, and raised in whoever adds or flushes next
            self.flush()

    def close(self) -> None:
        """Write all items at the end of the process; what cannot be written is told."""
        try:
            self.flush()
        except NotWritten as error:
            log.error("the process ends, %d events are lost: %s", error.count, error.reason)


_buffers: weakref.WeakSet[WriteBuffer[Any]] = weakref.WeakSet()


def _flush_all() -> None:
    for buffer in list(_buffers):
        buffer.close()


def _begin_anew() -> None:
    for buffer in list(_buffers):
        buffer._reset()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_begin_anew)


_KEPT_ENGINES = 16


class Engines:
    """One engine for each database that is in use, the last `limit` of them.

    Args:
        create: opens the engine of a database.
    """

    def __init__(self, create: Callable[[str], Engine], limit: int = _KEPT_ENGINES) -> None:
        self._create = create
        self._limit = limit
        self._reset()
        _all_engines.add(self)

    def _reset(self) -> None:
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> Engine:
        """Return the engine of this database."""
        with self._lock:
            engine = self._engines.get(name)
            if engine is None:
                engine = self._engines[name] = self._create(name)
                while len(self._engines) > self._limit:
                    self._engines.popitem(last=False)[1].dispose()
            else:
                self._engines.move_to_end(name)
            return engine

    def dispose(self) -> None:
        """Close all connections that are not in use; those in use when they come back."""
        with self._lock:
            engines, self._engines = self._engines, OrderedDict()
        for engine in engines.values():
            engine.dispose()


_all_engines: weakref.WeakSet[Engines] = weakref.WeakSet()
# A connection must not be closed by another process than the one that opened it: SQLite would give up locks.
_inherited: list[Engine] = []


def _open_anew() -> None:
    for engines in list(_all_engines):
        _inherited.extend(engines._engines.values())
        engines._reset()


os.register_at_fork(after_in_child=_open_anew)


_EXECUTIONS = AssetCheckExecutionsTable.c
# Partitions in one query: SQLite refuses statements with too many variables.
MAX_VARIABLES = 500
_ATTEMPTS = 10  # of several processes that add the same partitions


class BatchedEventLog(SqlEventLogStorage):
    """Mixin for a SQL event log: events that a run has for each shard are written many at a time.

    Any other event, any read through this object, `dispose` and the end of the process write what waits; a
    read of SQLite's index of all runs, the index alone. Any other reader sees an event half a second late at
    most, which is also what a killed process loses.

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

    @property
    def supports_partition_subset_in_asset_materialization_planned_events(self) -> bool:
        """A run tells in one event for which partitions it plans an asset; each gets a row in the index."""
        return True

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
        logged = [(row, values) for row in rows if row.is_logged for values in row.log_rows()]
        new_ids = self._next_ids(connection, max(len(logged), 1))
        ids = {id(row): id_ for (row, _), id_ in zip(logged, new_ids, strict=False)}
        if logged:
            connection.execute(
                SqlEventLogStorageTable.insert(),
                [{"id": id_, **values} for (_, values), id_ in zip(logged, new_ids, strict=True)],
            )
        # Without a row: a plan for an empty range.
        self._write_assets(connection, [row for row in rows if row.is_asset and id(row) in ids], ids)
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
        """Write evaluations, and remove the rows that their runs have of them: the plan, or an earlier one.

        A row in its place would have to grow, which leaves a third of SQLite's pages empty.
        """
        partitions: dict[tuple[str, str, str], list[str | None]] = {}
        for asset, check, run_id, partition in evaluated:
            partitions.setdefault((asset, check, run_id), []).append(partition)
        for (asset, check, run_id), keys in partitions.items():
            of_run = (
                _EXECUTIONS.asset_key == asset,
                _EXECUTIONS.check_name == check,
                _EXECUTIONS.run_id == run_id,
            )
            if None in keys:
                connection.execute(
                    AssetCheckExecutionsTable.delete().where(*of_run, _EXECUTIONS.partition.is_(None))
                )
            named = [key for key in keys if key is not None]
            for start in range(0, len(named), MAX_VARIABLES):
                some = _EXECUTIONS.partition.in_(named[start : start + MAX_VARIABLES])
                connection.execute(AssetCheckExecutionsTable.delete().where(*of_run, some))
        connection.execute(AssetCheckExecutionsTable.insert(), list(evaluated.values()))

    @abstractmethod
    def _insert_or_ignore(self) -> Any:
        """Return an insert of planned checks that leaves those alone that have been evaluated already."""


def _place(values: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in ("asset_key", "check_name", "run_id", "partition"))
