"""SQLite storages: databases made in one transaction, and an event log that writes many events in one.

The storages of runs and schedules differ from Dagster's own in nothing but how their databases are made. The
event log (`BatchedSqliteEventLogStorage`) also batches events, and keeps its engines open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import dagster as dg
import sqlalchemy as db
from dagster import Field, Noneable, StringSource
from dagster._core.instance.types import MayHaveInstanceWeakref
from dagster._core.storage.event_log import SqlEventLogStorageTable
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetKeyTable
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.schedules import SqliteScheduleStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._serdes import ConfigurableClassData
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import NullPool, QueuePool

from mm_assets.event_log.batched import BatchedEventLog
from mm_assets.event_log.rows import EventRow
from mm_assets.event_log.tables import (
    EVENTS,
    EVENTS_OF_RUN,
    RUNS,
    SCHEDULES,
    Engines,
    Tables,
    make_sqlite_tables,
    make_tables,
    revision_of,
)


class _MadeInHome(MayHaveInstanceWeakref[dg.DagsterInstance]):
    """Mixin for a stock class of SQLite that makes its database when it knows the instance, at one go.

    Subclasses name the folder of the database in `DAGSTER_HOME`, the database and its tables.
    """

    _place: ClassVar[tuple[str, str, Tables]]

    def register_instance(self, instance: dg.DagsterInstance) -> None:
        """Begin to work in the folder of this instance."""
        folder, name, tables = self._place
        self._conn_string = make_sqlite_tables(os.path.join(instance.root_directory, folder), name, tables)
        super().register_instance(instance)

    @classmethod
    def config_type(cls) -> Any:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: object) -> Any:
        return cls("", inst_data)  # type: ignore[call-arg]


class AtomicSqliteRunStorage(_MadeInHome, SqliteRunStorage):
    """Dagster's SQLite run storage: the same database, made in one transaction."""

    _place = ("history", "runs", RUNS)


class AtomicSqliteScheduleStorage(_MadeInHome, SqliteScheduleStorage):
    """Dagster's SQLite schedule storage: the same database, made in one transaction."""

    _place = ("schedules", "schedules", SCHEDULES)


class BatchedSqliteEventLogStorage(BatchedEventLog, SqliteEventLogStorage):
    """Dagster's SQLite event log: the same files, written in batches.

    A run's own database has its events without pictures and column schemas: those are in the index, where the
    pages of assets look for them.

    Args:
        base_dir: folder of the databases; None: where the stock class has them, in `DAGSTER_HOME`.
    """

    def __init__(self, base_dir: str | None = None, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines = Engines(self._open)
        self._init_lock = threading.Lock()
        self._asset_columns: set[str] = set()
        self._partition_changes = 0  # by this object
        self._inst_data = inst_data
        self._is_ready = False
        if base_dir is not None:
            self._begin(base_dir)

    def _begin(self, base_dir: str) -> None:
        self._start_batching()
        self._is_ready = True
        # As the stock class is about to know it, which makes the index where there is none.
        self._base_dir = os.path.abspath(base_dir)
        os.makedirs(self._base_dir, exist_ok=True)
        make_tables(self._engines.get(INDEX_SHARD_NAME), EVENTS)
        SqliteEventLogStorage.__init__(self, base_dir, self._inst_data)

    def register_instance(self, instance: dg.DagsterInstance) -> None:
        """Begin to work in the folder of this instance, if none was configured."""
        if not self._is_ready:
            self._begin(os.path.join(instance.root_directory, "history", "runs"))
        super().register_instance(instance)

    @classmethod
    def config_type(cls) -> Any:
        return {"base_dir": Field(Noneable(StringSource), is_required=False)}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> BatchedSqliteEventLogStorage:
        return cls(inst_data=inst_data, **config_value)

    def _open(self, shard: str) -> Engine:
        # An error would tell the values of hundreds of rows.
        options: dict[str, Any] = {"hide_parameters": True}
        options |= {"connect_args": {"timeout": SQLITE_BUSY_TIMEOUT_SECONDS}}
        if shard == INDEX_SHARD_NAME:
            options |= {"poolclass": QueuePool, "pool_size": 2, "max_overflow": 30, "pool_use_lifo": True}
        else:
            # Closing brings what was written into the main file: pages that watch a run look at that.
            options |= {"poolclass": NullPool}
        engine = db.create_engine(self.conn_string_for_shard(shard), **options)
        db.event.listen(engine, "connect", _prepare)
        return engine

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        self.flush()
        with self._transaction(shard) as connection:
            yield connection

    @contextmanager
    def _transaction(self, shard: str) -> Iterator[Connection]:
        engine = self._engines.get(shard)
        with self._init_lock:
            if shard not in self._initialized_dbs or not os.path.exists(self.path_for_shard(shard)):
                self._init(shard, engine)
                self._initialized_dbs.add(shard)
        with engine.connect() as connection, connection.begin():
            yield connection

    def _init(self, shard: str, engine: Engine) -> None:
        if shard == INDEX_SHARD_NAME:
            make_tables(engine, EVENTS)
            return
        revision = None
        if os.path.exists(self.path_for_shard(INDEX_SHARD_NAME)):
            with self._engines.get(INDEX_SHARD_NAME).connect() as connection:
                revision = revision_of(connection)
        make_tables(engine, EVENTS_OF_RUN, revision)

    def _has_asset_key_col_on_connection(self, conn: Connection, column_name: str) -> bool:
        if column_name not in self._asset_columns:
            self._asset_columns |= {
                column["name"] for column in db.inspect(conn).get_columns(AssetKeyTable.name)
            }
        return column_name in self._asset_columns

    def _write(self, rows: list[EventRow]) -> None:
        by_run: dict[str, list[EventRow]] = {}
        for row in rows:
            if row.is_logged and not row.in_run:
                by_run.setdefault(row.event.run_id, []).append(row)
        for run_id, of_run in by_run.items():
            with self._transaction(run_id) as connection:
                connection.execute(SqlEventLogStorageTable.insert(), [row.run_row() for row in of_run])
            for row in of_run:
                row.in_run = True
        indexed = [row for row in rows if row.is_indexed]
        if indexed:
            with self._transaction(INDEX_SHARD_NAME) as connection:
                self._write_index(connection, indexed)

    def _next_ids(self, connection: Connection, count: int) -> list[int]:
        # pysqlite begins a transaction with the first change only.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        last = connection.execute(db.select(db.func.max(SqlEventLogStorageTable.c.id))).scalar() or 0
        return list(range(last + 1, last + 1 + count))

    def get_dynamic_partitions(self, partitions_def_name: str) -> Sequence[str]:
        """Return all keys in the order in which they were added.

        Dagster asks about a hundred times in a run; they are read again only when some may have changed.
        """
        state, kept = self._kept_partitions()
        if partitions_def_name not in kept or kept[partitions_def_name][0] != state:
            keys = super().get_dynamic_partitions(partitions_def_name)
            kept[partitions_def_name] = (state, dict.fromkeys(keys))
        return list(kept[partitions_def_name][1])

    def has_dynamic_partition(self, partitions_def_name: str, partition_key: str) -> bool:
        """Return whether there is this key; to ask for one alone does not read all."""
        state, kept = self._kept_partitions()
        if partitions_def_name in kept and kept[partitions_def_name][0] == state:
            return partition_key in kept[partitions_def_name][1]
        return super().has_dynamic_partition(partitions_def_name, partition_key)

    def _kept_partitions(self) -> tuple[object, dict[str, tuple[object, dict[str, None]]]]:
        """The state of all keys, and what a connection has kept: keys, and the state when they were read."""
        with self.index_connection() as connection:
            kept = connection.info.setdefault("mm_assets:dynamic_partitions", {})
            # Changes with each commit of another connection. Ids tell less: that of a deleted row is used
            # again.
            version = connection.exec_driver_sql("PRAGMA data_version").scalar()
        return (self._partition_changes, version), kept

    def add_dynamic_partitions(self, partitions_def_name: str, partition_keys: Sequence[str]) -> None:
        """Add keys that are not there yet."""
        try:
            super().add_dynamic_partitions(partitions_def_name, partition_keys)
        finally:
            self._partition_changes += 1

    def delete_dynamic_partition(self, partitions_def_name: str, partition_key: str) -> None:
        """Delete a key, if it is there."""
        try:
            super().delete_dynamic_partition(partitions_def_name, partition_key)
        finally:
            self._partition_changes += 1

    def _insert_or_ignore(self) -> Any:
        return AssetCheckExecutionsTable.insert().prefix_with("OR IGNORE")

    def upgrade(self) -> None:
        self._forget()
        super().upgrade()
        self._forget()

    def wipe(self) -> None:
        """Delete all events, and the databases of runs."""
        self.flush()
        self._forget()
        super().wipe()

    def dispose(self) -> None:
        if self._is_ready:
            super().dispose()
        self._engines.dispose()

    def _forget(self) -> None:
        self._engines.dispose()
        self._tables.clear()
        self._migrations.clear()
        self._asset_columns.clear()
        self._partition_changes += 1


def _prepare(connection: Any, _: object) -> None:
    """Set what holds for a connection."""
    cursor = connection.cursor()
    # Of a database that is made now: events of 2 to 3 KB leave a third of pages of 4 KB empty.
    cursor.execute("PRAGMA page_size=16384")
    # A commit does not wait for the disk; the database stays consistent whatever happens (WAL).
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
