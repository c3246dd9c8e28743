"""Canaries: what alerts rely on in Dagster 1.13.27 beyond its documentation, on real SQLite files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg
import pytest

from mm_assets.graph import dagster_internals, instance_queries
from mm_assets_tests.automation.alerts.event_writer import Writer
from mm_assets_tests.graph.io_manager.toy import check_key

CHECK = check_key("curated", "not_empty")
KEYS = ["a", "b", "c", "d"]


@pytest.fixture
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writer]:
    with dg.instance_for_test(temp_dir=str(tmp_path_factory.mktemp("home"))) as instance:
        instance.add_dynamic_partitions("shards", KEYS)
        yield Writer(instance)


def test_the_last_evaluation_of_a_partition_counts_and_a_planned_one_does_not(writer: Writer) -> None:
    first, second, third = (writer.begin_run() for _ in range(3))
    for key in KEYS:
        writer.evaluated(first, "curated", "not_empty", key, False, "WARN" if key == "a" else "ERROR")
    writer.evaluated(second, "curated", "not_empty", "b", False)
    writer.evaluated(second, "curated", "not_empty", "c", True)
    writer.planned_check(third, "curated", "not_empty", ["a"])
    writer.evaluated(third, "curated", "other", "a", False)
    found = {row.run_id: row for row in instance_queries.failing_by_run(writer.instance, CHECK)}
    assert found == {
        first: instance_queries.FailingRun(first, shards=2, errors=1, over_all=False),
        second: instance_queries.FailingRun(second, shards=1, errors=1, over_all=False),
    }
    writer.instance.delete_dynamic_partition("shards", "b")
    assert [row.run_id for row in instance_queries.failing_by_run(writer.instance, CHECK, "shards")] == [
        first
    ]


def test_the_evaluation_of_no_partition_is_one_of_its_own(writer: Writer) -> None:
    run = writer.begin_run()
    writer.evaluated(run, "curated", "not_empty", None, False, summary="all of it")
    assert instance_queries.failing_by_run(writer.instance, CHECK, "shards") == [
        instance_queries.FailingRun(run, shards=0, errors=0, over_all=True)
    ]
    assert instance_queries.failing_evaluations(writer.instance, CHECK, [run], 5) == []
    (evaluation,) = instance_queries.failing_evaluations(writer.instance, CHECK, [run], 5, over_all=True)
    assert evaluation.metadata["summary"].value == "all of it"


def test_evaluations_are_read_back_in_the_order_of_partitions_up_to_a_limit(writer: Writer) -> None:
    run, other = writer.begin_run(), writer.begin_run()
    for key in reversed(KEYS):
        writer.evaluated(run if key in "ac" else other, "curated", "not_empty", key, False, summary=key * 3)
    found = instance_queries.failing_evaluations(writer.instance, CHECK, [run, other], 3, "shards")
    assert [(e.partition, e.metadata["summary"].value) for e in found] == [
        ("a", "aaa"),
        ("b", "bbb"),
        ("c", "ccc"),
    ]
    assert [
        e.partition for e in instance_queries.failing_evaluations(writer.instance, CHECK, [other], 3)
    ] == [
        "b",
        "d",
    ]


def test_the_run_that_was_the_last_to_evaluate(writer: Writer) -> None:
    checks = [check_key(asset, "not_empty") for asset in ("curated", "filtered")]
    assert instance_queries.last_evaluations(writer.instance, checks) is None
    first, second, third = (writer.begin_run() for _ in range(3))
    writer.evaluated(first, "curated", "not_empty", "a", True)
    before = datetime.now(UTC)
    for key in KEYS:
        writer.evaluated(second, "filtered", "not_empty", key, key != "b")
    writer.evaluated(second, "curated", "not_empty", "a", True)
    writer.evaluated(third, "curated", "not_empty", None, False)
    writer.planned_check(third, "curated", "not_empty", ["a"])
    found = instance_queries.last_evaluations(writer.instance, checks)
    assert found is not None
    assert before <= found.at <= datetime.now(UTC)
    assert found == instance_queries.LastEvaluations(
        second, found.at, checks=2, partitions=4, evaluations=5, failed=1
    )


def test_runs_with_failures_are_told_from_those_without(writer: Writer) -> None:
    good, bad = writer.begin_run(), writer.begin_run()
    writer.evaluated(good, "curated", "not_empty", "a", True)
    writer.evaluated(bad, "curated", "not_empty", "b", False)
    assert instance_queries.has_failures(writer.instance, CHECK, [good, bad])
    assert not instance_queries.has_failures(writer.instance, CHECK, [good])
    assert not instance_queries.has_failures(writer.instance, CHECK, [])


def test_attempts_have_no_result_until_something_is_materialized(writer: Writer) -> None:
    first, second = writer.begin_run(), writer.begin_run()
    for key in ("a", "b"):
        writer.planned(first, "curated", key)
    writer.materialized(first, "curated", "a")
    asset, attempts = dg.AssetKey("curated"), dagster_internals.attempts_without_result
    assert attempts(writer.instance, asset) == {"b": first}
    writer.planned(second, "curated", "b")
    writer.planned(second, "curated", "c")
    assert attempts(writer.instance, asset) == {"b": second, "c": second}
    assert attempts(writer.instance, asset, run_ids=[first]) == {"b": first}
    assert attempts(writer.instance, asset, but=[second]) == {"b": first}
    # What is planned, or being made, is neither there nor missing; a first attempt that ended failed for b.
    assert dagster_internals.not_landed(writer.instance, asset) == []
    writer.end_run(first, False)
    assert dagster_internals.not_landed(writer.instance, asset) == ["b"]
    assert dagster_internals.not_landed(writer.instance, asset, ended=[second]) == ["b", "c"]
    for key in "bc":
        writer.materialized(second, "curated", key)
    assert attempts(writer.instance, asset) == {}


def test_what_is_launched_while_somebody_looks_is_not_missing(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = writer.begin_run()
    writer.planned(failed, "curated", "a")
    writer.end_run(failed, False)
    look = dagster_internals.unfinished_runs

    def launching(instance: dg.DagsterInstance) -> object:
        if len(writer.runs) < 3:
            for key in ("a", "b"):
                writer.planned(writer.begin_run(), "curated", key)
        return look(instance)

    monkeypatch.setattr(dagster_internals, "unfinished_runs", launching)
    assert dagster_internals.not_landed(writer.instance, dg.AssetKey("curated")) == ["a"]
    assert len(writer.runs) == 3


def test_backfills_by_status_the_latest_first(writer: Writer) -> None:
    names = []
    for status in ("FAILED", "COMPLETED_SUCCESS", "FAILED"):
        writer.begin_backfill(KEYS)
        writer.end_backfill(status)
        names.append(writer.backfill)
    found = instance_queries.backfills(writer.instance, ["FAILED"], 5)
    assert [backfill.backfill_id for backfill in found] == [names[2], names[0]]
    assert len(instance_queries.backfills(writer.instance, ["FAILED"], 1)) == 1


def test_ticks_that_have_ended_the_latest_first(writer: Writer) -> None:
    for error in ("one", None, "three"):
        writer.ticked("broken", error)
    (state,) = writer.instance.all_instigator_state()
    ticks = instance_queries.finished_ticks(writer.instance, state.instigator_origin_id, state.selector_id, 2)
    assert [tick.is_failure for tick in ticks] == [True, False]
    assert ticks[0].error is not None and ticks[0].error.message == "three"
