"""SQLite: the index of all runs is written when it is read, the database of a run later."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import dagster as dg
import pytest

from mm_assets import event_log
from mm_assets_tests.event_log.databases import OURS, STOCK, open_instance
from mm_assets_tests.event_log.writer import CHECK, KEY, events_of_shard

MADE = dg.DagsterEventType.ASSET_MATERIALIZATION
RUN = "11111111-0000-0000-0000-000000000000"


def logged(home: Path) -> list[str]:
    """The partitions of which the database of the run tells, in its order."""
    with sqlite3.connect(home / "history" / "runs" / f"{RUN}.db") as connection:
        found = connection.execute(
            "SELECT partition FROM event_logs WHERE dagster_event_type = 'ASSET_MATERIALIZATION' ORDER BY id"
        )
        return [partition for (partition,) in found]


@pytest.fixture(autouse=True)
def no_timer() -> Iterator[None]:
    """Nothing is written because of the time."""
    with patch.object(event_log.WriteBuffer, "_start_timer", lambda self: None):
        yield


def test_a_read_of_the_index_leaves_the_database_of_the_run_alone(tmp_path: Path) -> None:
    with open_instance(tmp_path, OURS) as instance:
        log = instance.event_log_storage
        for shard in ("a", "b"):
            for event in events_of_shard(RUN, shard):
                log.store_event(event)
            assert log.get_materialized_partitions(KEY) >= {shard}
            assert log.get_asset_check_execution_history(CHECK, 1)[0].run_id == RUN
        assert not (tmp_path / "history" / "runs" / f"{RUN}.db").exists()
        made = log.get_records_for_run(RUN, of_type=MADE).records
        assert [record.partition_key for record in made] == ["a", "b"]
        assert logged(tmp_path) == ["a", "b"]
        assert log.get_materialized_partitions(KEY) == {"a", "b"}
    with open_instance(tmp_path, STOCK) as instance:
        log = instance.event_log_storage
        assert len(log.get_records_for_run(RUN, of_type=MADE).records) == 2
        assert len(log.fetch_materializations(KEY, limit=10).records) == 2


def test_what_waits_is_there_at_the_end(tmp_path: Path) -> None:
    with open_instance(tmp_path, OURS) as instance:
        for event in events_of_shard(RUN, "a"):
            instance.event_log_storage.store_event(event)
        assert instance.get_materialized_partitions(KEY) == {"a"}
    assert logged(tmp_path) == ["a"]
