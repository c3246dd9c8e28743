"""The first start at a new `DAGSTER_HOME`: several together, one that is killed, a full disk, and what those
of earlier versions have left. Each database is then that of the stock class, made by one alone.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.sqlite import LAST_KNOWN_STAMPED_SQLITE_ALEMBIC_REVISION

from mm_assets.headless.instance import CONFIGURATION, open_instance

DATABASES = ("history/runs.db", "history/runs/index.db", "schedules/schedules.db")
# As `dagster.yaml` was before it named classes of ours for runs and schedules; and without one.
EARLIER = "event_log_storage:\n  module: mm_assets.event_log.sqlite\n  class: BatchedSqliteEventLogStorage\n"
STOCK = "telemetry:\n  enabled: false\n"


@contextmanager
def _of_command(home: Path) -> Iterator[dg.DagsterInstance]:
    with open_instance(home) as instance:
        yield instance


@contextmanager
def _of_dagster(home: Path) -> Iterator[dg.DagsterInstance]:
    """As web server and daemon do."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


Opener = Callable[[Path], AbstractContextManager[dg.DagsterInstance]]
WAYS = {
    "our configuration, Dagster's programs": (CONFIGURATION.read_text(), _of_dagster),
    "our configuration, our commands": (CONFIGURATION.read_text(), _of_command),
    "an earlier one, our commands": (EARLIER, _of_command),
    "stock classes, our commands": (STOCK, _of_command),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[str, Opener]:
    return WAYS[request.param]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the stock classes make, alone and undisturbed."""
    home = _home(tmp_path_factory.mktemp("whole"), STOCK)
    _use(_of_dagster, home)
    return _made(home)


def _home(folder: Path, configuration: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "dagster.yaml").write_text(configuration)
    return folder


def _use(opened: Opener, home: Path) -> None:
    with opened(home) as instance:
        assert instance.get_runs() == []
        assert list(instance.all_instigator_state()) == []
        key = str(os.getpid())  # the stock class fails where two add the same one at once
        instance.add_dynamic_partitions("shards", [key])
        assert key in instance.get_dynamic_partitions("shards")


def _made(home: Path) -> dict[str, object]:
    """Of each database what it has: tables, indexes, its revisions and the migrations that are done."""
    found: dict[str, object] = {}
    for name in DATABASES:
        with closing(sqlite3.connect(home / name)) as connection:
            found[name] = (
                sorted(connection.execute("SELECT type, name FROM sqlite_master")),
                connection.execute("SELECT version_num FROM alembic_version").fetchall(),
                sorted(connection.execute("SELECT name FROM secondary_indexes")),
                connection.execute("PRAGMA journal_mode").fetchall(),
                connection.execute("PRAGMA integrity_check").fetchall(),
            )
    return found


def _start(opened: Opener, home: Path, prepare: Callable[[], object] = lambda: None) -> int:
    """Open an instance in a process of its own; its errors are in a file beside the databases."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        prepare()
        _use(opened, home)
        status = 0
    finally:
        if (error := sys.exception()) is not None:
            (home / f"error-{os.getpid()}").write_text(f"{type(error).__name__}: {error}")
        os._exit(status)
    raise AssertionError


def _end(process: int, home: Path) -> str:
    """Wait for a process; return its error."""
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    error = home / f"error-{process}"
    return error.read_text() if error.exists() else "" if status == 0 else f"ended by {status}"


def test_several_together(way: tuple[str, Opener], tmp_path: Path, whole: dict[str, object]) -> None:
    configuration, opened = way
    for number in range(2):
        home = _home(tmp_path / str(number), configuration)
        reader, writer = os.pipe()

        def wait(reader: int = reader, writer: int = writer) -> None:
            os.close(writer)
            os.read(reader, 1)  # until the parent closes its end

        processes = [_start(opened, home, wait) for _ in range(3)]
        os.close(reader)
        os.close(writer)
        assert [_end(process, home) for process in processes] == ["", "", ""]
        assert _made(home) == whole
        _use(opened, home)


def test_one_that_is_killed(way: tuple[str, Opener], tmp_path: Path, whole: dict[str, object]) -> None:
    configuration, opened = way
    began = time.monotonic()
    home = _home(tmp_path / "measured", configuration)
    assert _end(_start(opened, home), home) == ""
    lasts = time.monotonic() - began
    moments = random.Random(13)
    for number in range(4):
        home = _home(tmp_path / str(number), configuration)
        process = _start(opened, home)
        time.sleep(moments.uniform(0, lasts))
        os.kill(process, signal.SIGKILL)
        _end(process, home)
        _use(opened, home)
        assert _made(home) == whole, number


@pytest.mark.parametrize("kib", [8, 16, 64, 100])
def test_a_disk_that_is_full(
    kib: int, way: tuple[str, Opener], tmp_path: Path, whole: dict[str, object]
) -> None:
    """A limit for files: SQLite is told the same as by a disk that has no room for one."""
    configuration, opened = way
    home = _home(tmp_path / "home", configuration)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kib << 10, kib << 10))

    told = _end(_start(opened, home, limit), home)
    assert "disk" in told
    if opened is _of_command:
        assert any(f"{home / name}: Dagster's database cannot be made" in told for name in DATABASES), told
        assert "\n" not in told
    _use(opened, home)
    assert _made(home) == whole


def _empty(database: Path) -> None:
    database.write_bytes(b"")


def _without_revision(database: Path) -> None:
    """Killed after all tables, before the rest."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("DROP TABLE alembic_version")
        connection.execute("DELETE FROM secondary_indexes")


def _without_some_tables(database: Path) -> None:
    """Killed between two tables, and between a table and its index."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        rows = connection.execute("SELECT type, name FROM sqlite_master WHERE sql LIKE 'CREATE INDEX%'")
        for kind, name in rows.fetchall()[::2]:
            connection.execute(f"DROP {kind} {name}")
        connection.execute("DROP TABLE secondary_indexes")
        connection.execute("DELETE FROM alembic_version")


def _with_two_heads(database: Path) -> None:
    """Made by two at once, the second of which took the tables for old ones."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO alembic_version VALUES (?)", (LAST_KNOWN_STAMPED_SQLITE_ALEMBIC_REVISION,)
        )


@pytest.mark.parametrize("harm", [_empty, _without_revision, _without_some_tables, _with_two_heads])
def test_what_is_half_made_is_mended(
    harm: Callable[[Path], None],
    way: tuple[str, Opener],
    tmp_path: Path,
    whole: dict[str, object],
) -> None:
    configuration, opened = way
    home = _home(tmp_path / "home", configuration)
    _use(_of_dagster, home)
    for name in DATABASES:
        harm(home / name)
    _use(opened, home)
    assert _made(home) == whole


def test_what_is_in_it_stays(way: tuple[str, Opener], tmp_path: Path) -> None:
    configuration, opened = way
    home = _home(tmp_path / "home", configuration)
    run = dg.DagsterRun("job")
    with _of_dagster(home) as instance:
        instance.add_run(run)
        instance.add_dynamic_partitions("shards", ["b", "a"])
    for name in DATABASES:
        _with_two_heads(home / name)
        _without_some_tables(home / name)
    with opened(home) as instance:
        assert [found.run_id for found in instance.get_runs()] == [run.run_id]
        assert instance.get_dynamic_partitions("shards") == ["b", "a"]


def test_a_database_at_an_earlier_revision_is_not_touched(way: tuple[str, Opener], tmp_path: Path) -> None:
    """Whether to migrate it is for `dagster instance migrate` to say."""
    configuration, opened = way
    home = _home(tmp_path / "home", configuration)
    _use(_of_dagster, home)
    for name in DATABASES:
        with closing(sqlite3.connect(home / name, isolation_level=None)) as connection:
            connection.execute(f"UPDATE alembic_version SET version_num = '{_EARLIER}'")
    before = _made(home)
    _use(opened, home)
    assert _made(home) == before


def test_the_run_storage_keeps_one_connection_of_its_own_for_each_process(tmp_path: Path) -> None:
    home = _home(tmp_path, CONFIGURATION.read_text())
    with open_instance(home) as instance, open_instance(home) as other:
        for number in range(20):
            instance.run_storage.set_cursor_values({"number": str(number)})
            assert other.run_storage.get_cursor_values({"number"}) == {"number": str(number)}
        assert _descriptors(home) == 2
        if (child := os.fork()) == 0:
            found = None
            try:
                found = instance.run_storage.get_cursor_values({"number"})
                instance.run_storage.set_cursor_values({"number": "of a child"})
            finally:
                os._exit(found != {"number": "19"})
        assert os.waitpid(child, 0)[1] == 0
        assert other.run_storage.get_cursor_values({"number"}) == {"number": "of a child"}
    assert _descriptors(home) == 0


def test_the_run_storage_sees_a_home_that_was_made_anew(tmp_path: Path) -> None:
    home = _home(tmp_path, CONFIGURATION.read_text())
    with open_instance(home) as instance:
        instance.run_storage.set_cursor_values({"number": "before"})
        shutil.rmtree(home)
        _home(tmp_path, CONFIGURATION.read_text())
        with open_instance(home) as other:
            other.run_storage.set_cursor_values({"number": "after"})
            assert instance.run_storage.get_cursor_values({"number"}) == {"number": "after"}


def _descriptors(home: Path) -> int:
    """Return how many connections of this process have the database of runs open."""
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return opened.count(str((home / DATABASES[0]).resolve()))


def test_a_killed_copy_of_the_configuration_leaves_none(tmp_path: Path) -> None:
    """`dagster.yaml` is there as a whole, or not at all."""
    environment = {"DAGSTER_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    program = (
        "import os, shutil\n"
        "from mm_assets.headless import instance\n"
        "copy = shutil.copyfile\n"
        "def killed(source, target):\n"
        "    copy(source, target)\n"
        "    os.truncate(target, 100)\n"
        "    os.kill(os.getpid(), 9)\n"
        "shutil.copyfile = killed\n"
        "instance.prepare_home()\n"
    )
    done = os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-c", program], environment)
    assert done == -signal.SIGKILL
    assert not (tmp_path / "home" / "dagster.yaml").exists()


_EARLIER = "6b7fb194ff9c"  # a migration of Dagster before its newest
