"""What `DueShardFinder` says is due is what a run would make, and what Dagster calls missing or stale."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import StaleStatus
from dagster._core.storage.event_log.schema import SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

from mm_assets.automation import FAILED, MISSING, STALE, Due
from mm_assets_tests.automation.histories import ASSETS, History
from mm_assets_tests.graph.io_manager.conftest import Toy
from mm_assets_tests.quick_instance import quick_instance

DAGSTER = {MISSING: StaleStatus.MISSING, STALE: StaleStatus.STALE}


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    with quick_instance(tmp_path / "artifacts") as instance:
        history = History(Toy(tmp_path, instance), monkeypatch)
        history.deployment.shards(4)
        yield history


def found(history: History) -> dict[tuple[str, str], Due]:
    return {
        (asset.to_user_string(), key): why
        for asset, due in history.find().by_asset.items()
        for key, why in due.items()
    }


def is_own(why: Due) -> bool:
    """Whether it is due for a reason of its own, not because what it is made from is due."""
    return not why.reason.endswith(" is due")


@pytest.mark.parametrize("seed", range(5))
def test_what_is_due_in_random_histories(seed: int, history: History) -> None:
    chance = random.Random(f"history {seed}")
    for _ in range(12):
        history.step(chance)
    looked = history.find(changes_nothing=True).by_asset
    assert history.find(changes_nothing=True).by_asset == looked == history.find().by_asset
    due = found(history)
    told = "; ".join(history.told)

    staleness = history.staleness()
    assert {found_ for found_ in staleness.items() if found_[1] is not StaleStatus.FRESH} <= {
        (place, staleness[place]) for place in due
    }, told
    for place, why in due.items():
        if why.kind in DAGSTER and is_own(why):  # of failed partitions Dagster compares what was there before
            assert staleness[place] is DAGSTER[why.kind], (place, why, told)
    assert found(history) == due, f"observing the raw shards changes nothing: {told}"

    before = set(staleness)
    result = history.run()
    unchanged = {
        (event.asset_key.to_user_string(), event.partition)
        for event in result.get_asset_materialization_events()
        if event.step_materialization_data.materialization.metadata.get("unchanged") is not None
    }
    assert before - unchanged <= set(due), told
    was_interrupted = any(step.startswith("interrupted") for step in history.told)
    for place in unchanged & set(due):
        # An interrupted run may have published and recorded what it did not log any more.
        assert due[place].kind == FAILED or not is_own(due[place]) or was_interrupted, (due[place], told)
    left = found(history)
    broken = {
        key for key in history.versions() if "RAISE" in (history.deployment.raw / f"{key}.txt").read_text()
    }
    assert {(place, why.kind, why.may_land) for place, why in left.items()} == {
        ((asset, key), FAILED, False)
        for asset in ("curated", "scores", "filtered", "table")
        for key in broken
    }, told


def test_the_log_of_an_early_release_tells_that_a_shard_failed_for_its_content(history: History) -> None:
    """It has a message in the run, and no observation of the shard."""
    history.deployment.shard("k02", "RAISE\n")
    run = f"run {history.run().run_id[:8]}"
    log, row = history.deployment.instance.event_log_storage, SqlEventLogStorageTable.c
    assert isinstance(log, SqlEventLogStorage)
    is_observed = row.dagster_event_type == dg.DagsterEventType.ASSET_OBSERVATION.value
    is_made = row.asset_key.in_(dg.AssetKey(asset).to_string() for asset in ASSETS)
    with log.index_connection() as connection:
        deleted = connection.execute(SqlEventLogStorageTable.delete().where(is_observed, is_made)).rowcount
    assert deleted == len(ASSETS)
    expected = Due(FAILED, f"failed in {run}", may_land=False)
    assert found(history) == {(asset, "k02"): expected for asset in ASSETS}
