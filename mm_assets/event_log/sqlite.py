"""SQLite storages: databases made in one transaction, and an event log that writes many events in one.

The storages of runs and schedules differ from Dagster's own in nothing but how their databases are made
(`make_tables`): by whoever is first, and mended where they are half made. The stock classes make them in many
steps: of two at once both fail, and so does each that comes after, or after one that was killed. (Those for
Postgres try again, and need no such help.) The event log (`BatchedSqliteEventLogStorage`) also batches
events, and keeps its engines open.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import sqlalchemy as db
from dagster import Field, Noneable, StringSource
from dagster._core.events.log import EventLogEntry
from dagster._core.instance.types import MayHaveInstanceWeakref
from dagster._core.storage.event_log import SqlEventLogStorageTable
from dagster._core.storage.event_log.base import EventLogConnection
from dagster._core.storage.event_log.migration import ASSET_DATA_MIGRATIONS, EVENT_LOG_DATA_MIGRATIONS
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetKeyTable,
    SqlEventLogStorageMetadata,
)
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.runs import migration as runs
from dagster._core.storage.runs.schema import RunStorageSqlMetadata
from dagster._core.storage.schedules import SqliteScheduleStorage
from dagster._core.storage.schedules import migration as schedules
from dagster._core.storage.schedules.schema import ScheduleStorageSqlMetadata
from dagster._core.storage.sql import __file__ as _SQL
from dagster._core.storage.sqlite import (
    LAST_KNOWN_STAMPED_SQLITE_ALEMBIC_REVISION,
    SQLITE_BUSY_TIMEOUT_SECONDS,
    create_db_conn_string,
)
from dagster._serdes import ConfigurableClassData, deserialize_value
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import NullPool, QueuePool

from mm_assets.event_log import MAX_VARIABLES, BatchedEventLog, Engines
from mm_assets.event_log.rows import EventRow, MaterializationKey, abbreviated_key
from mm_assets.storage.errors import located

# Half a minute in all, as long as SQLite itself is told to wait.
_PAUSE_SECONDS = 0.01
_ATTEMPTS = 3000
# As alembic has them; `test_tables.py` compares.
_STATED = re.compile(r"^(revision|down_revision)\b[^=\n]*=(.*)", re.MULTILINE)
_NAMES = re.compile(r"\w{12}")
_REVISION = db.Table(
    "alembic_version",
    db.MetaData(),
    db.Column("version_num", db.String(32), nullable=False),
    db.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


@dataclass(frozen=True)
class Tables:
    """Tables of one of Dagster's storages.

    Args:
        metadata: their definitions, at the newest revision.
        migrations: names of migrations of rows that whoever makes them has done: there are no rows yet.
    """

    metadata: db.MetaData
    migrations: Iterable[str] = ()


RUNS = Tables(RunStorageSqlMetadata, (*runs.REQUIRED_DATA_MIGRATIONS, *runs.OPTIONAL_DATA_MIGRATIONS))
EVENTS = Tables(SqlEventLogStorageMetadata, (*EVENT_LOG_DATA_MIGRATIONS, *ASSET_DATA_MIGRATIONS))
EVENTS_OF_RUN = Tables(SqlEventLogStorageMetadata)
SCHEDULES = Tables(
    ScheduleStorageSqlMetadata,
    (*schedules.REQUIRED_SCHEDULE_DATA_MIGRATIONS, *schedules.OPTIONAL_SCHEDULE_DATA_MIGRATIONS),
)
# By the stock class that has them in SQLite: name of the database, tables.
_STOCK = {
    "SqliteRunStorage": ("runs", RUNS),
    "SqliteEventLogStorage": ("index", EVENTS),
    "SqliteScheduleStorage": ("schedules", SCHEDULES),
}


def revision_of(connection: Connection) -> str | None:
    """Return the migration that a database has reached; None where no table tells, or several are told."""
    revisions = _revisions(connection)
    return revisions[0] if len(revisions) == 1 else None


def make_tables(engine: Engine, tables: Tables, revision: str | None = None) -> None:
    """Make what is missing of the tables of a new SQLite database; leave one alone that has them all.

    Rows of one that is half made stay.

    Args:
        revision: the one that a new database is at (default: the newest).

    Raises:
        sqlalchemy.exc.DatabaseError: it cannot be written, or another process has had it locked for too long.
    """
    with located(str(engine.url.database)), engine.connect() as connection:
        if not _is_half_made(connection, tables):
            return
        connection.rollback()
        _begin_write_ahead_log(connection)
        # pysqlite begins a transaction with the first change of rows only; of two, one has to wait.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if _is_half_made(connection, tables):
            _make_missing(connection, tables, revision or _newest())
        connection.commit()


def make_sqlite_tables(folder: str, name: str, tables: Tables) -> str:
    """Make a SQLite database with its folder, as `make_tables` does; return its URL."""
    os.makedirs(folder, exist_ok=True)
    url = create_db_conn_string(folder, name)
    make_tables(
        db.create_engine(url, poolclass=NullPool, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS}),
        tables,
    )
    return url


def make_stock_tables(storages: Iterable[ConfigurableClassData | None]) -> None:
    """Make, or mend, the databases that stock classes for SQLite would make for themselves."""
    for storage in storages:
        folder = storage.config_dict.get("base_dir") if storage is not None else None
        if storage is not None and storage.class_name in _STOCK and isinstance(folder, str):
            make_sqlite_tables(folder, *_STOCK[storage.class_name])


def _is_half_made(connection: Connection, tables: Tables) -> bool:
    """Return whether there is not one revision, or a table is missing at the newest one."""
    revision = revision_of(connection)
    missing = tables.metadata.tables.keys() - set(db.inspect(connection).get_table_names())
    return revision is None or (bool(missing) and revision == _newest())


def _make_missing(connection: Connection, tables: Tables, revision: str) -> None:
    known = db.inspect(connection)
    there = set(known.get_table_names())
    are_old = any(
        set(table.columns.keys()) - {column["name"] for column in known.get_columns(name)}
        for name, table in tables.metadata.tables.items()
        if name in there
    )
    tables.metadata.create_all(connection)
    _REVISION.create(connection, checkfirst=True)
    connection.execute(_REVISION.delete())
    # One of a Dagster before 2024 may have no revision; its own classes assume this one.
    made = LAST_KNOWN_STAMPED_SQLITE_ALEMBIC_REVISION if are_old else revision
    connection.execute(_REVISION.insert(), {"version_num": made})
    if not are_old:
        for table in tables.metadata.sorted_tables:
            for index in table.indexes:
                index.create(connection, checkfirst=True)
        _mark_migrations(connection, tables)


def _mark_migrations(connection: Connection, tables: Tables) -> None:
    if not tables.migrations:
        return
    marks = tables.metadata.tables["secondary_indexes"]
    marked = set(connection.scalars(db.select(marks.c.name)))
    for name in tables.migrations:
        if name not in marked:
            connection.execute(marks.insert(), {"name": name, "migration_completed": datetime.now()})


def _revisions(connection: Connection) -> list[str]:
    if not db.inspect(connection).has_table(_REVISION.name):
        return []
    return list(connection.scalars(db.select(_REVISION.c.version_num)))


@cache
def _newest() -> str:
    """Return the migration that no other follows. Alembic would import all of them."""
    known, followed = set(), set()
    for file in Path(_SQL).with_name("alembic").glob("versions/*.py"):
        stated = dict(_STATED.findall(file.read_text(encoding="utf-8")))
        known.update(_NAMES.findall(stated.get("revision", "")))
        followed.update(_NAMES.findall(stated.get("down_revision", "")))
    (newest,) = known - followed
    return str(newest)


def _begin_write_ahead_log(connection: Connection) -> None:
    """Change the journal of a database that other processes may be about to make as well."""
    for attempt in range(_ATTEMPTS, 0, -1):
        try:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        except db.exc.OperationalError as error:
            # SQLite does not wait here, whatever its timeout, while another process does the same.
            if attempt == 1 or "database is locked" not in str(error):
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


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


def _identity(file: str | None) -> tuple[int, int] | None:
    """Return what tells a file from another one at the same path; None if there is none."""
    try:
        found = os.stat(file or "")
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class AtomicSqliteRunStorage(_MadeInHome, SqliteRunStorage):
    """Dagster's SQLite run storage: the same database, made in one transaction.

    It keeps a connection, and the statements that are compiled: the stock class has an engine for each call.
    """

    _place = ("history", "runs", RUNS)

    def __init__(self, conn_string: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines = Engines(partial(db.create_engine, poolclass=QueuePool, pool_size=1, max_overflow=-1))
        self._connected_to: tuple[int, int] | None = None
        super().__init__(conn_string, inst_data)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Yield a connection, within one transaction."""
        # A server may outlive its home, which is removed and made anew.
        found = _identity(db.make_url(self._conn_string).database)
        if found != self._connected_to:
            self._engines.dispose()
            self._connected_to = found
        with self._engines.get(self._conn_string).connect() as connection, connection.begin():
            yield connection

    def dispose(self) -> None:
        """Close all connections."""
        self._engines.dispose()


class AtomicSqliteScheduleStorage(_MadeInHome, SqliteScheduleStorage):
    """Dagster's SQLite schedule storage: the same database, made in one transaction."""

    _place = ("schedules", "schedules", SCHEDULES)


class BatchedSqliteEventLogStorage(BatchedEventLog, SqliteEventLogStorage):
    """Dagster's SQLite event log: the same files, written in batches.

    A run's own database has abbreviated materializations of partitions, and one event for all that are
    planned of an asset: the index has them in full, for the pages of assets and of runs.

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
        db.event.listen(engine, "connect", _prepare_index if shard == INDEX_SHARD_NAME else _prepare)
        return engine

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        if shard == INDEX_SHARD_NAME:  # the run's own database is opened for each write: that is for later
            self._buffer.show(self._write_to_index)
        else:
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

    def _write_to_index(self, rows: list[EventRow]) -> None:
        indexed = [row for row in rows if row.is_indexed and not row.in_index]
        if indexed:
            with self._transaction(INDEX_SHARD_NAME) as connection:
                self._write_index(connection, indexed)
            for row in indexed:
                row.in_index = True

    def _write(self, rows: list[EventRow]) -> None:
        # The index first: whoever watches a run reads there what its own database abbreviates.
        self._write_to_index(rows)
        by_run: dict[str, list[EventRow]] = {}
        for row in rows:
            if row.is_logged and not row.in_run:
                by_run.setdefault(row.event.run_id, []).append(row)
        for run_id, of_run in by_run.items():
            with self._transaction(run_id) as connection:
                connection.execute(SqlEventLogStorageTable.insert(), [row.run_row() for row in of_run])
            for row in of_run:
                row.in_run = True

    def get_records_for_run(
        self,
        run_id: str,
        cursor: str | None = None,
        of_type: dg.DagsterEventType | set[dg.DagsterEventType] | None = None,
        limit: int | None = None,
        ascending: bool = True,
    ) -> EventLogConnection:
        """Return events of a run, with its abbreviated materializations completed from the index."""
        found = super().get_records_for_run(run_id, cursor, of_type, limit, ascending)
        keys = [abbreviated_key(record.event_log_entry) for record in found.records]
        partitions = sorted({key[1] for key in keys if key is not None})
        whole: dict[MaterializationKey, EventLogEntry] = {}
        row = SqlEventLogStorageTable.c
        for start in range(0, len(partitions), MAX_VARIABLES):
            query = db.select(row.asset_key, row.partition, row.event).where(
                row.run_id == run_id,
                row.dagster_event_type == dg.DagsterEventType.ASSET_MATERIALIZATION.value,
                row.partition.in_(partitions[start : start + MAX_VARIABLES]),
            )
            with self.index_connection() as connection:
                rows = connection.execute(query).fetchall()
            for asset, partition, text in rows:
                entry = deserialize_value(text, EventLogEntry)
                whole[asset, partition, entry.timestamp] = entry
        if not whole:
            return found
        records = [
            record if key is None else record._replace(event_log_entry=whole.get(key, record.event_log_entry))
            for record, key in zip(found.records, keys, strict=True)
        ]
        return found._replace(records=records)

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
    # A commit does not wait for the disk; the database stays consistent whatever happens (WAL).
    connection.execute("PRAGMA synchronous=NORMAL")


def _prepare_index(connection: Any, record: object) -> None:
    """Set what holds for a connection to the index of all runs."""
    # Of a database that is made now: events of 2 to 3 KB leave a third of pages of 4 KB empty.
    connection.execute("PRAGMA page_size=16384")
    _prepare(connection, record)
