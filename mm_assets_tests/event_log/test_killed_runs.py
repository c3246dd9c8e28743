"""Runs of the real graph, killed at random moments: after another run the stock class sees what it sees of an
undisturbed one.

``TEST_KILLS=20 pytest …`` kills more often than the suite does.
"""

import os
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from mm_assets.event_log.rows import EventRow
from mm_assets.event_log.sqlite import BatchedSqliteEventLogStorage
from mm_assets.graph import planned_jobs
from mm_assets_tests.event_log.databases import OURS, STOCK, open_instance
from mm_assets_tests.event_log.view import ASSETS, view
from mm_assets_tests.graph.deployment import Deployment
from mm_assets_tests.live.killing import RunServer
from tools.demo import make_shards

KILLS = int(os.environ.get("TEST_KILLS", "1"))
# Those of `RunServer`.
_SETTINGS = {
    "MM_WORKERS": "2",
    "MM_MAX_LOSS": "1",
    "MM_MIN_ASPECT_RATIO": "1.0",
    "MM_MAX_ASPECT_RATIO": "2.0",
}
_SHARDED = [asset.to_user_string() for asset in ASSETS[1:]]


def _seen(folder: Path, raw: Path) -> dict[str, Any]:
    """What a run leaves, but for what tells which shards it made and which it found as they are.

    The checks of raw shards look at those that it reads; whether a shard adds a column depends on those that
    have been published before.
    """
    with open_instance(folder / "home", STOCK) as instance:
        found = view(Deployment(str(raw), str(folder / "storage"), instance, {}))
    for partitions in found["latest"].values():
        for metadata, *_ in partitions.values():
            metadata.pop("unchanged", None)
    for place, (*_, metadata, _) in found["evaluations"].items():
        metadata.pop("evaluated_in_this_run", None)
        if place.startswith("raw_shards.schema_contract "):
            metadata.pop("added", None)
            metadata.pop("absent", None)
    return found


def _run(folder: Path, raw: Path) -> float:
    """Seconds that a run takes."""
    started = time.monotonic()
    with open_instance(folder / "home", OURS) as instance:
        assert Deployment(str(raw), str(folder / "storage"), instance, _SETTINGS).run(assets=_SHARDED).success
    return time.monotonic() - started


def _killed_run(folder: Path, raw: Path, after: float) -> None:
    storage = folder / "storage"
    storage.mkdir()
    with RunServer(raw, storage, folder / "home") as server:
        timer = threading.Timer(after, server.kill)
        timer.start()
        try:
            server.run(_SHARDED)
        except EOFError:
            pass  # as was intended
        else:
            timer.join()


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """By key, what was found and what was expected, where they differ."""
    return {
        key: (found.get(key), expected.get(key))
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    }


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    make_shards(folder, members=1, pdf=1, samples=2)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, raw: Path) -> tuple[float, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    seconds = _run(folder, raw)
    return seconds, _seen(folder, raw)


@pytest.mark.parametrize("number", range(KILLS))
def test_another_run_brings_back_what_a_killed_one_has_lost(
    tmp_path: Path, raw: Path, undisturbed: tuple[float, dict[str, Any]], number: int
) -> None:
    seconds, expected = undisturbed
    moment = random.Random(number).uniform(0.02, 0.98) * seconds
    _killed_run(tmp_path, raw, moment)
    _run(tmp_path, raw)
    found = _seen(tmp_path, raw)
    differing = {part: _difference(found[part], expected[part]) for part in expected}
    assert not any(differing.values()), (f"killed after {moment:.2f} s of {seconds:.2f}", differing)
    shutil.rmtree(tmp_path / "storage")


@pytest.mark.parametrize("shards_of_a_batch", [1, 2, 50])
def test_the_last_checks_of_shards_are_written_with_the_evaluation_over_all(
    tmp_path: Path, raw: Path, shards_of_a_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed between them would leave all shards evaluated, and nothing over all."""
    monkeypatch.setattr(planned_jobs, "_BATCH_SHARDS", shards_of_a_batch)
    written: list[list[tuple[dg.AssetCheckKey, str | None]]] = []
    write = BatchedSqliteEventLogStorage._write_index

    def observed(storage: Any, connection: Any, rows: list[EventRow]) -> None:
        events = [row.event.dagster_event for row in rows if row.event.is_dagster_event]
        found = [event.event_specific_data for event in events if event is not None]
        checks = [each for each in found if isinstance(each, dg.AssetCheckEvaluation)]
        written.append([(each.asset_check_key, each.partition) for each in checks])
        write(storage, connection, rows)

    monkeypatch.setattr(BatchedSqliteEventLogStorage, "_write_index", observed)
    _run(tmp_path, raw)
    last_of_shards: dict[dg.AssetCheckKey, int] = {}
    over_all: dict[dg.AssetCheckKey, int] = {}
    for number, batch in enumerate(written):
        for check, key in batch:
            (over_all if key is None else last_of_shards)[check] = number
    assert len(over_all) > len(_SHARDED)
    assert {check: over_all[check] for check in last_of_shards} == last_of_shards
