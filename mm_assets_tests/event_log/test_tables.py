"""The database of a run: as the stock class makes it, and made once."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
import sqlalchemy as db
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage

from mm_assets.event_log.sqlite import EVENTS_OF_RUN, BatchedSqliteEventLogStorage, make_tables

_EARLIER = "6b7fb194ff9c"  # a migration of Dagster before its newest


def _schema(database: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(database)) as connection:
        made = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        revisions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return {"made": {(kind, name, _words(sql)) for kind, name, sql in made}, "at": revisions, "mode": mode}


def _words(sql: str | None) -> str:
    return " ".join((sql or "").split())


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, SqliteEventLogStorage]:
    """The stock class and ours, in folders of their own; a run's database is there after a first read."""
    return {
        "stock": SqliteEventLogStorage(str(tmp_path / "stock")),
        "ours": BatchedSqliteEventLogStorage(str(tmp_path / "ours")),
    }


def _open_run(log: SqliteEventLogStorage) -> Path:
    with log.run_connection("run"):
        return Path(log.path_for_shard("run"))


def test_it_is_that_of_the_stock_class(logs: dict[str, SqliteEventLogStorage]) -> None:
    found = {kind: _schema(_open_run(log)) for kind, log in logs.items()}
    assert found["ours"] == found["stock"]
    assert len(found["ours"]["at"]) == 1
    assert found["ours"]["mode"] == "wal"


def test_it_is_as_old_as_the_index_and_migrated_with_it(logs: dict[str, SqliteEventLogStorage]) -> None:
    """`dagster instance migrate` calls `upgrade`."""
    newest = _schema(_open_run(logs["stock"]))["at"]
    log = logs["ours"]
    with log.index_connection() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{_EARLIER}'")
    run = _open_run(log)
    assert _schema(run)["at"] == [(_EARLIER,)]
    log.upgrade()
    index = Path(log.path_for_shard("index"))
    assert _schema(run)["at"] == _schema(index)["at"] == newest


def test_without_a_revision_in_the_index_the_stock_class_makes_it(
    logs: dict[str, SqliteEventLogStorage],
) -> None:
    expected = _schema(_open_run(logs["stock"]))
    with logs["ours"].index_connection() as connection:
        connection.exec_driver_sql("DROP TABLE alembic_version")
    assert _schema(_open_run(logs["ours"])) == expected


def test_several_at_once_make_it_once(tmp_path: Path) -> None:
    makers, database = 8, tmp_path / "run.db"
    begin = Barrier(makers)

    def make(number: int) -> None:
        engine = db.create_engine(f"sqlite:///{database}", poolclass=db.NullPool)
        begin.wait()
        make_tables(engine, EVENTS_OF_RUN, f"by {number}")

    with ThreadPoolExecutor(makers) as pool:
        list(pool.map(make, range(makers)))
    assert len(_schema(database)["at"]) == 1


def test_it_is_waited_for_while_another_reads_it(tmp_path: Path) -> None:
    """The journal cannot be changed then, and SQLite says so at once."""
    database = tmp_path / "run.db"
    engine = db.create_engine(f"sqlite:///{database}", poolclass=db.NullPool)
    refused = Event()

    @db.event.listens_for(engine, "handle_error")
    def note(context: Any) -> None:
        refused.set()

    with closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("CREATE TABLE other (n)")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM other").fetchall()
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(make_tables, engine, EVENTS_OF_RUN, "newest")
            assert refused.wait(60)
            assert not made.done()
            reader.execute("COMMIT")
            made.result(60)
    assert _schema(database)["at"] == [("newest",)]
    assert _schema(database)["mode"] == "wal"


def test_what_is_in_it_stays(tmp_path: Path) -> None:
    database = tmp_path / "run.db"
    engine = db.create_engine(f"sqlite:///{database}", poolclass=db.NullPool)
    for revision in ("first", "second"):
        make_tables(engine, EVENTS_OF_RUN, revision)
    assert _schema(database)["at"] == [("first",)]
