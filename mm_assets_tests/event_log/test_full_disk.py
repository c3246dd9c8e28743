"""A disk that is full for a while: nothing is lost, and the run is told once."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as db

from mm_assets.event_log import NotWritten
from mm_assets_tests.event_log.databases import OURS, STOCK, open_instance
from mm_assets_tests.event_log.writer import CHECK, KEY, events_of_shard

TOLD = re.compile(
    r"events cannot be written, \d+ wait in memory: \(sqlite3.OperationalError\) database or disk is full"
)


class Disk:
    """The room that SQLite has: all, or what its databases take by now."""

    def __init__(self) -> None:
        self.is_full = False
        self.refused = 0

    def limit(self, connection: db.Connection) -> None:
        if connection.dialect.name == "sqlite":
            pages = 1 if self.is_full else 1 << 30  # never less than there are
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    def count(self, context: db.ExceptionContext) -> None:
        self.refused += "full" in str(context.original_exception)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    listeners = {"begin": disk.limit, "handle_error": disk.count}
    for event, listener in listeners.items():
        db.event.listen(db.Engine, event, listener)
    yield disk
    for event, listener in listeners.items():
        db.event.remove(db.Engine, event, listener)


def log_shards(instance: dg.DagsterInstance, run_id: str, shards: range) -> list[str]:
    """Log events of shards; what the run was told."""
    told = []
    for number in shards:
        for event in events_of_shard(run_id, f"{number:05d}"):
            try:
                instance.event_log_storage.store_event(event)
            except NotWritten as error:
                told.append(str(error))
    return told


def test_events_wait_until_there_is_room(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    with open_instance(tmp_path, OURS) as instance:
        assert log_shards(instance, "run", range(500)) == []
        disk.is_full = True
        told = log_shards(instance, "run", range(500, 3000))
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        for lines in (told, errors):  # who was first to find out, the run or the timer, knows of fewer events
            assert len(lines) == 1 and TOLD.fullmatch(lines[0]), lines
        assert disk.refused < 50, "5,000 events are no 5,000 attempts"
        with pytest.raises(NotWritten, match="disk is full"):
            instance.event_log_storage.get_latest_storage_id_by_partition(
                KEY, dg.DagsterEventType.ASSET_MATERIALIZATION
            )
        disk.is_full = False
        assert log_shards(instance, "run", range(3000, 3010)) == []
    with open_instance(tmp_path, STOCK) as instance:
        log = instance.event_log_storage
        ids = log.get_latest_storage_id_by_partition(KEY, dg.DagsterEventType.ASSET_MATERIALIZATION)
        assert sorted(ids, key=lambda key: ids[key]) == [f"{number:05d}" for number in range(3010)]
        assert len(log.get_records_for_run("run", limit=100_000).records) == 3010, "none of them twice"
        passed = log.get_asset_check_execution_history(CHECK, limit=100_000)
        assert {record.partition for record in passed} == ids.keys() and len(passed) == 3010


def test_the_run_fails_with_one_line_and_can_be_repeated(tmp_path: Path, disk: Disk) -> None:
    shards = [f"{number:05d}" for number in range(2000)]
    runs = []

    @dg.asset
    def asset(context: dg.AssetExecutionContext) -> None:
        runs.append(context.run.run_id)
        for number, shard in enumerate(shards):
            disk.is_full = number > 900 and len(runs) == 1
            context.log_event(dg.AssetMaterialization("asset", partition=shard))

    with open_instance(tmp_path, OURS) as instance:
        with pytest.raises(NotWritten, match="disk is full"):
            dg.materialize([asset], instance=instance)
        disk.is_full = False
        (run,) = instance.get_runs()
        ids = instance.event_log_storage.get_latest_storage_id_by_partition(
            KEY, dg.DagsterEventType.ASSET_MATERIALIZATION
        )
        assert len(ids) > 900 and sorted(ids) == shards[: len(ids)], "what was logged is not lost"
        assert not run.is_finished, "nor is what could not be said of the run: see `lost_runs`"
        assert dg.materialize([asset], instance=instance).success
        ids = instance.event_log_storage.get_latest_storage_id_by_partition(
            KEY, dg.DagsterEventType.ASSET_MATERIALIZATION
        )
        assert sorted(ids) == shards
