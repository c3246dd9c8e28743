"""Several processes at one event log, and processes that die."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import TextIO

import dagster as dg
import pytest

from mm_assets.event_log import MAX_SECONDS
from mm_assets_tests.event_log.databases import OURS, STOCK, open_instance
from mm_assets_tests.event_log.writer import CHECK, KEY, events_of_shard, write


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    with ExitStack() as databases:
        if request.param == "sqlite":
            yield None
        else:
            yield databases.enter_context(request.getfixturevalue("postgres").database("events"))


def _start(
    home: Path, url: str | None, run_id: str, shards: int, seconds: float
) -> tuple[ForkProcess, TextIO]:
    """A process that logs events, and what it tells of them."""
    reader, told = os.pipe()
    process = get_context("fork").Process(target=write, args=(home, url, run_id, shards, seconds, told))
    process.start()
    os.close(told)
    return process, open(reader, encoding="utf-8")


def _seen(home: Path, url: str | None) -> tuple[dict[str, int], set[str]]:
    """Storage id of each materialized shard, and the shards whose check has passed, by the stock class."""
    with open_instance(home, STOCK, url) as instance:
        log = instance.event_log_storage
        ids = dict(log.get_latest_storage_id_by_partition(KEY, dg.DagsterEventType.ASSET_MATERIALIZATION))
        history = log.get_asset_check_execution_history(CHECK, limit=100_000)
        return ids, {str(record.partition) for record in history if record.status.value == "SUCCEEDED"}


def test_two_processes_write_at_once_and_a_cursor_misses_nothing(tmp_path: Path, url: str | None) -> None:
    shards = 400
    with open_instance(tmp_path, OURS, url):
        pass
    writers = [_start(tmp_path, url, name, shards, 0) for name in ("a", "b")]
    found: list[str] = []
    cursor: str | None = None
    with open_instance(tmp_path, STOCK, url) as instance:
        while True:
            are_done = not any(writer.is_alive() for writer, _ in writers)
            page = instance.fetch_materializations(KEY, limit=1000, cursor=cursor, ascending=True)
            found.extend(str(record.partition_key) for record in page.records)
            cursor = page.cursor
            if are_done and not page.records:
                break
    assert [writer.exitcode for writer, _ in writers] == [0, 0]
    for _, told in writers:
        told.close()
    expected = {f"{name}-{number}" for name in ("a", "b") for number in range(shards)}
    assert len(found) == len(expected) and set(found) == expected
    for name in ("a", "b"):
        assert [f for f in found if f.startswith(name)] == [f"{name}-{number}" for number in range(shards)]
    ids, passed = _seen(tmp_path, url)
    assert ids.keys() == passed == expected


def test_a_killed_process_loses_half_a_second_at_most(tmp_path: Path, url: str | None) -> None:
    writer, told = _start(tmp_path, url, "run", 100_000, 0.005)
    logged = [told.readline()]
    deadline = time.time() + MAX_SECONDS + 1.5
    while time.time() < deadline:
        logged.append(told.readline())
    killed = time.time()
    writer.kill()
    logged.extend(told)
    writer.join()
    told.close()
    when = {shard: float(then) for shard, then in (line.split() for line in logged if line.endswith("\n"))}
    ids, passed = _seen(tmp_path, url)
    # A second more for writing itself, on a machine that is busy.
    written = {shard for shard, then in when.items() if then < killed - MAX_SECONDS - 1}
    assert written and written <= ids.keys()
    # All or nothing of a transaction, in the order of the calls.
    numbers = sorted(int(shard.partition("-")[2]) for shard in ids)
    assert numbers == list(range(len(numbers)))
    assert ids.keys() - passed == set() or ids.keys() - passed == {f"run-{numbers[-1]}"}
    # What is missing comes back with a run that reports it again, and nothing is there twice.
    with open_instance(tmp_path, OURS, url) as instance:
        for shard in when:
            for event in events_of_shard("again", shard):
                instance.event_log_storage.store_event(event)
    ids, passed = _seen(tmp_path, url)
    assert when.keys() <= ids.keys() and when.keys() <= passed


def test_a_forked_process_writes_through_connections_of_its_own(tmp_path: Path, url: str | None) -> None:
    with open_instance(tmp_path, OURS, url) as instance:
        log = instance.event_log_storage
        for event in events_of_shard("parent", "before"):
            log.store_event(event)
        child = os.fork()
        if not child:
            status = 1
            try:
                for event in events_of_shard("child", "of child"):
                    log.store_event(event)
                ids = log.get_latest_storage_id_by_partition(KEY, dg.DagsterEventType.ASSET_MATERIALIZATION)
                status = 0 if "of child" in ids else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for event in events_of_shard("parent", "after"):
            log.store_event(event)
    ids, passed = _seen(tmp_path, url)
    assert ids.keys() == passed == {"before", "of child", "after"}
    assert len(set(ids.values())) == 3


def test_an_error_of_the_database_reaches_the_run_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that another process keeps locked; by default SQLite waits for it for half a minute."""
    monkeypatch.setattr("mm_assets.event_log.sqlite.SQLITE_BUSY_TIMEOUT_SECONDS", 0.01)
    with open_instance(tmp_path, OURS) as instance:
        log = instance.event_log_storage
        blocker = sqlite3.connect(tmp_path / "history" / "runs" / "index.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        for event in events_of_shard("run", "one"):
            log.store_event(event)
        with pytest.raises(Exception, match="database is locked"):
            log.get_latest_storage_id_by_partition(KEY, dg.DagsterEventType.ASSET_MATERIALIZATION)
        with pytest.raises(Exception, match="database is locked"):
            for event in events_of_shard("run", "two"):
                log.store_event(event)
        blocker.execute("ROLLBACK")
        blocker.close()
        ids = log.get_latest_storage_id_by_partition(KEY, dg.DagsterEventType.ASSET_MATERIALIZATION)
        assert ids.keys() == {"one", "two"}
        records = log.get_records_for_run("run").records
        assert [record.event_log_entry.asset_materialization.partition for record in records] == [  # type: ignore[union-attr]
            "one",
            "two",
        ]


def test_a_check_evaluated_before_its_plan_is_stored_stays_evaluated(tmp_path: Path) -> None:
    from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
    from dagster._core.definitions.partitions.subset import DefaultPartitionsSubset

    from mm_assets_tests.event_log.writer import _entry

    planned = AssetCheckEvaluationPlanned(
        asset_key=KEY, check_name=CHECK.name, partitions_subset=DefaultPartitionsSubset({"one", "two"})
    )
    with open_instance(tmp_path, OURS) as instance:
        for event in events_of_shard("run", "one", passed=False):
            instance.event_log_storage.store_event(event)
        instance.event_log_storage.store_event(
            _entry("run", dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED, planned)
        )
    with open_instance(tmp_path, STOCK) as instance:
        history = instance.event_log_storage.get_asset_check_execution_history(CHECK, limit=10)
    assert {record.partition: record.status.value for record in history} == {
        "one": "FAILED",
        "two": "PLANNED",
    }
