"""The job `refresh`: backfills of what is missing, failed or stale, and of nothing else."""

from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from mm_assets.automation import backfills
from mm_assets.automation.backfills import DueBackfills
from mm_assets.graph.instance_queries import WHY
from mm_assets_tests.automation.alerts.event_writer import Writer
from mm_assets_tests.automation.conftest import Operated
from mm_assets_tests.graph.deployment import ASSETS


def test_missing_failed_and_stale_shards_are_made(failed: Operated) -> None:
    failed.shard("c", 2)
    failed.shard("e")
    failed.tick(name="new_shards")
    assert failed.run_job("refresh")
    told = failed.tick(name="new_shards")
    assert failed.backfills() == [("schedule refresh", {asset: ["b", "c", "e"] for asset in ASSETS})]
    (backfill,) = failed.instance.get_backfills()
    why = "3 shards: 1 failed before, 1 the raw shard has changed, 1 never made"
    assert (backfill.title, backfill.tags[WHY]) == (why, why)
    assert f"backfill {backfill.backfill_id} of {why}" in told
    assert failed.run_job("refresh")
    failed.tick(name="new_shards")
    assert len(failed.backfills()) == 1, "the first one has not ended"


def test_of_what_is_up_to_date_nothing_is_made(made: Operated) -> None:
    assert made.run_job("refresh")
    made.tick(name="new_shards")
    assert made.backfills() == []


def test_it_fails_where_the_sensor_that_launches_is_stopped(
    operated: Operated, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Else it would find shards each night, and nobody would make them."""
    home = tmp_path_factory.mktemp("home")
    with dg.instance_for_test(temp_dir=str(home)) as instance:  # one that keeps what sensors do
        stopping = replace(operated, instance=instance)
        stopping.tick(name="new_shards")
        Writer(instance).stopped("new_shards")
        assert not stopping.run_job("refresh")
        assert stopping.tick(name="new_shards") == "4 raw shards are known"
        assert stopping.backfills() == []


def test_a_newer_find_is_not_forgotten(operated: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    operated.tick(name="new_shards")
    assert operated.run_job("refresh")
    find = DueBackfills.find

    def found_again(*arguments: Any) -> DueBackfills:
        backfills.note_found(operated.instance, find(*arguments))
        return find(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(DueBackfills, "find", found_again)
        operated.tick(name="new_shards")
    operated.finish_backfills()  # before it made anything
    operated.tick(name="new_shards")
    assert len(operated.backfills()) == 2


def test_its_run_ends_before_what_it_found_is_launched(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one run at a time is allowed, others would have to wait for it."""
    operated.tick(name="new_shards")
    monkeypatch.setattr(backfills, "LOOK_AGAIN_SECONDS", 5)
    assert operated.run_job("refresh")
    operated.tick(name="new_shards")
    assert operated.backfills() == []
    monkeypatch.setattr(backfills, "LOOK_AGAIN_SECONDS", 0)
    operated.tick(name="new_shards")
    operated.finish_backfills()  # before it made anything
    operated.tick(name="new_shards")
    assert operated.backfills() == [("schedule refresh", {asset: list("abcd") for asset in ASSETS})]


def test_what_something_else_has_taken_meanwhile_is_not_launched(operated: Operated) -> None:
    operated.tick(name="new_shards")
    assert operated.run_job("refresh")
    assert operated.run(["a"]).success
    operated.planned_run(["b"], ["curated_parquet"])
    operated.shard("c", 2)  # it is being uploaded
    operated.tick(name="new_shards")
    assert operated.backfills() == [("schedule refresh", {asset: ["d"] for asset in ASSETS})]


def test_a_run_or_backfill_that_begins_during_the_search_keeps_its_shards(operated: Operated) -> None:
    operated.tick(name="new_shards")
    with operated.graph() as (graph, listing):
        found = DueBackfills.find(operated.instance, graph, listing)
        same = DueBackfills.find(operated.instance, graph, listing)
        same.launch(operated.instance, same.due.restricted("a"), "somebody")
        assert operated.run(["b"]).success
        operated.planned_run(["c"])
        found.launch(operated.instance, found.due, "schedule refresh")
    by_whom = {started_by: targets["curated_parquet"] for started_by, targets in operated.backfills()}
    assert by_whom == {"somebody": ["a"], "schedule refresh": ["d"]}
