"""The database of one run, made without reading the files of all migrations (the stock class does, twice)."""

from __future__ import annotations

import time

import sqlalchemy as db
from dagster._core.storage.event_log.schema import SqlEventLogStorageMetadata
from sqlalchemy import Connection, Engine

# Half a minute in all, as long as SQLite itself is told to wait.
_PAUSE_SECONDS = 0.01
_ATTEMPTS = 3000
# As alembic has it; `test_run_database.py` compares.
_REVISION = db.Table(
    "alembic_version",
    db.MetaData(),
    db.Column("version_num", db.String(32), nullable=False),
    db.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def revision_of(connection: Connection) -> str | None:
    """Return the migration that a database has reached; None where no table tells."""
    if not db.inspect(connection).has_table(_REVISION.name):
        return None
    return connection.execute(db.select(_REVISION.c.version_num)).scalar()


def make_run_database(engine: Engine, revision: str) -> None:
    """Make the tables of a new database, at this revision; leave one alone that has them.

    Raises:
        sqlalchemy.exc.DatabaseError: it cannot be written, or another process has had it locked for too long.
    """
    with engine.connect() as connection:
        if revision_of(connection) is not None:
            return
        _begin_write_ahead_log(connection)
        # pysqlite begins a transaction with the first change of rows only: of two that make it, one waits.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if revision_of(connection) is None:
            SqlEventLogStorageMetadata.create_all(connection)
            _REVISION.create(connection, checkfirst=True)
            connection.execute(_REVISION.insert(), {"version_num": revision})
        connection.commit()


def _begin_write_ahead_log(connection: Connection) -> None:
    """Change the journal of a database, before it has tables: one that has them is not looked at again."""
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
