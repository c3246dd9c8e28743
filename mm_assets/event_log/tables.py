"""Dagster's tables in a SQLite database, made in one transaction, and engines that are kept open.

* `make_tables`: the tables are made by whoever is first, and mended where they are half made. The stock
  classes make them in many steps: of two at once both fail, and so does each that comes after, or after one
  that was killed. (Those for Postgres try again, and need no such help.)
* `Engines`: database engines that are kept open, and never shared with a process that was forked off.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as db
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster._core.storage.event_log.migration import ASSET_DATA_MIGRATIONS, EVENT_LOG_DATA_MIGRATIONS
from dagster._core.storage.event_log.schema import SqlEventLogStorageMetadata
from dagster._core.storage.runs import migration as runs
from dagster._core.storage.runs.schema import RunStorageSqlMetadata
from dagster._core.storage.schedules import migration as schedules
from dagster._core.storage.schedules.schema import ScheduleStorageSqlMetadata
from dagster._core.storage.sql import ALEMBIC_SCRIPTS_LOCATION
from dagster._core.storage.sqlite import (
    LAST_KNOWN_STAMPED_SQLITE_ALEMBIC_REVISION,
    SQLITE_BUSY_TIMEOUT_SECONDS,
    create_db_conn_string,
)
from dagster._serdes import ConfigurableClassData
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import NullPool

from mm_assets.storage.errors import located

# Half a minute in all, as long as SQLite itself is told to wait.
_PAUSE_SECONDS = 0.01
_ATTEMPTS = 3000
# As alembic has it; `test_tables.py` compares.
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


def _newest() -> str:
    config = Config()
    config.set_main_option("script_location", ALEMBIC_SCRIPTS_LOCATION)
    return str(ScriptDirectory.from_config(config).get_current_head())


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


_KEPT = 16


class Engines:
    """One engine for each database that is in use, the last `limit` of them.

    Args:
        create: opens the engine of a database.
    """

    def __init__(self, create: Callable[[str], Engine], limit: int = _KEPT) -> None:
        self._create = create
        self._limit = limit
        self._reset()
        _all.add(self)

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


_all: weakref.WeakSet[Engines] = weakref.WeakSet()
# A connection must not be closed by another process than the one that opened it: SQLite would give up locks.
_inherited: list[Engine] = []


def _begin_anew() -> None:
    for engines in list(_all):
        _inherited.extend(engines._engines.values())
        engines._reset()


os.register_at_fork(after_in_child=_begin_anew)
