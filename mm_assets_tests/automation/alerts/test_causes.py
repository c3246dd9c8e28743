"""What is wrong is found in the event log of a real instance, told once, and cleared when it is gone."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.automation.whole_set import training_set
from mm_assets_tests.automation.alerts.conftest import Alerts, alerts_of
from mm_assets_tests.automation.alerts.event_writer import Writer
from mm_assets_tests.automation.alerts.receivers import Webhook
from mm_assets_tests.event_log.databases import OURS, open_instance
from mm_assets_tests.graph.io_manager.conftest import Toy
from mm_assets_tests.warm_workers import warm_workers

DAY = 86400.0


def test_shards_that_fail_in_a_real_run_and_are_mended(
    alerts: Alerts, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    toy = Toy(tmp_path, instance)
    toy.shards(5)
    toy.shard("k03", "RAISE")
    toy.shard("k04", "this line is far longer than twenty letters\n")
    with warm_workers():
        assert not toy.run("all", "k01", "k05").success
        missing, warned = alerts.tick(ui_url="http://ui:3000/")
        assert missing["type"] == "failure"
        what, downstream, shard, _, seen, todo, page = missing["message"].splitlines()
        assert missing["title"] == f"mm_assets: {what}"
        assert what.startswith("1 of 5 shards did not land: curated in run ")
        assert downstream == "missing for that in: filtered, scores, table"
        assert shard == "- k03: line says RAISE"
        assert re.fullmatch(r"First seen: \d{4}-\d\d-\d\dT\d\d:\d\dZ", seen)
        assert todo.endswith("mm-assets run --failed")
        assert page == "Page: http://ui:3000/assets/curated?view=partitions"
        assert warned["type"] == "warning"
        assert "Check short_lines of curated warns: 1 of 5 shards in run " in warned["title"]
        assert "- k04" in warned["message"].splitlines()
        assert alerts.tick() == []
        toy.shard("k03")
        toy.shard("k04")
        assert toy.run("all", "k01", "k05").success
    (clear,) = alerts.tick()
    assert (clear["type"], clear["title"]) == ("success", "mm_assets: all clear: 2 problems are gone")
    assert alerts.tick() == []


def test_an_earlier_attempt_on_a_shard_that_failed_again_is_no_run_that_crashed(
    alerts: Alerts, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    toy = Toy(tmp_path, instance)
    toy.shards(2)
    toy.shard("k02", "RAISE")
    with warm_workers():
        assert not toy.run("all", "k02", "k02").success
        assert not toy.run("all", "k01", "k02").success
    (missing,) = alerts.tick()
    assert "1 of 2 shards did not land: curated in run " in missing["title"]


def test_warnings_are_told_only_if_wanted(alerts: Alerts) -> None:
    writer, keys = alerts.writer(), alerts.shards(2)
    run = writer.begin_run()
    writer.evaluated(run, "curated", "short_lines", keys[0], False, "WARN", summary="too long")
    writer.end_run(run, True)
    assert alerts.titles(alert_on="error") == []
    assert alerts.titles(alert_on="warn") == ["Check short_lines of curated warns: 1 shard in run"]
    assert alerts.titles(alert_on="error") == []  # no all-clear: it still warns


def test_a_check_with_errors_and_warnings_is_one_cause_with_both_figures(alerts: Alerts) -> None:
    writer, keys = alerts.writer(), alerts.shards(30)
    run = writer.begin_run()
    for number, key in enumerate(keys):
        severity = "ERROR" if number < 2 else "WARN"
        text = 'says "AssetCheckSeverity.ERROR"'  # in data it is escaped, and counts for nothing
        writer.evaluated(run, "curated", "short_lines", key, False, severity, summary=text)
    writer.end_run(run, True)
    (message,) = alerts.tick(alert_on="error")
    lines = message["message"].splitlines()
    assert lines[0].startswith("Check short_lines of curated failed: 30 shards in run ")
    assert lines[1:3] == ["with severity ERROR: 2", '- k00000: says "AssetCheckSeverity.ERROR"']
    assert lines[21:23] == ['- k00019: says "AssetCheckSeverity.ERROR"', "and 10 more"]


def test_each_backfill_has_its_own_message_and_the_last_evaluation_of_a_shard_counts(alerts: Alerts) -> None:
    keys = alerts.shards(10)
    first, second = alerts.writer(), alerts.writer()
    first.begin_backfill(keys)
    second.begin_backfill(keys[5:])
    for writer, failing in ((first, keys), (second, keys[5:])):
        for part in (failing[::2], failing[1::2]):
            run = writer.begin_run()
            for key in part:
                writer.evaluated(run, "curated", "not_empty", key, False)
            writer.end_run(run, True)
    found = "Check not_empty of curated failed: 5 of {} shards in backfill"
    assert sorted(alerts.titles()) == [found.format(10), found.format(5)]
    mended = alerts.writer()
    run = mended.begin_run()
    for key in keys[:5]:
        mended.evaluated(run, "curated", "not_empty", key, True)
    mended.end_run(run, True)
    assert alerts.titles() == [f"all clear: {found.format(10)}"]
    assert alerts.titles() == []


def test_a_check_that_a_sensor_evaluates(alerts: Alerts) -> None:
    """It belongs to no run, and stays one cause however often it fails."""

    def evaluate(passed: bool, shards: dict[str, str]) -> None:
        metadata = {"shards": dg.MetadataValue.json(shards), "summary": "some are stale"}
        alerts.instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(dg.AssetKey("curated"), "fresh", passed, metadata)
        )

    alerts.repository = alerts.with_check("curated", "fresh")
    assert alerts.tick() == []
    evaluate(False, {"k1": "raw data changed"})
    (message,) = alerts.tick()
    assert message["title"] == "mm_assets: Check fresh of curated failed"
    assert message["message"].splitlines()[1:3] == ["- some are stale", "- k1: raw data changed"]
    evaluate(False, {"k1": "raw data changed", "k2": "code changed"})
    assert alerts.tick() == []
    evaluate(True, {})
    assert alerts.titles() == ["all clear: Check fresh of curated failed"]


def test_a_partition_that_is_deleted_fails_no_longer(alerts: Alerts) -> None:
    writer, keys = alerts.writer(), alerts.shards(2)
    run = writer.begin_run()
    writer.planned(run, "curated", keys[0])
    writer.evaluated(run, "curated", "not_empty", keys[1], False)
    writer.end_run(run, False)
    assert len(alerts.tick()) == 2
    for key in keys:
        alerts.instance.delete_dynamic_partition("shards", key)
    writer.end_run(writer.begin_run(), True)  # something happens
    assert alerts.titles() == ["all clear: 2 problems are gone"]


def test_a_shard_that_is_being_made_again_is_not_clear_before_it_has_landed(alerts: Alerts) -> None:
    writer, keys = alerts.writer(), alerts.shards(3)
    run = writer.begin_run()
    writer.planned(run, "curated", keys[0])
    writer.end_run(run, False)
    assert alerts.titles() == ["1 shard of curated did not land in run"]
    again = alerts.writer()
    retry = again.begin_run()
    again.planned(retry, "curated", keys[0])
    assert alerts.titles() == []
    again.end_run(retry, False)
    assert alerts.titles() == []  # it was told, and nothing is clear
    third = writer.begin_run()
    writer.planned(third, "curated", keys[0])
    writer.materialized(third, "curated", keys[0])
    writer.end_run(third, True)
    assert alerts.titles() == ["all clear: 1 shard of curated did not land in run"]


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("landed", []),
        ("failed", ["1 shard of curated did not land in run"]),
        ("never", ["1 shard of curated did not land in run"]),
    ],
)
def test_a_lost_run_that_dagster_starts_again_is_told_by_what_becomes_of_that(
    alerts: Alerts, outcome: str, told: list[str]
) -> None:
    writer, keys = alerts.writer(), alerts.shards(2)
    lost = writer.begin_run(tags={"dagster/will_retry": "true"})
    for key in keys:
        writer.planned(lost, "curated", key)
    writer.materialized(lost, "curated", keys[0])
    writer.evaluated(lost, "curated", "not_empty", keys[1], passed=False)
    writer.end_run(lost, False)
    assert alerts.titles() == []
    if outcome == "never":
        assert alerts.titles(later=3500.0) == []
        found = alerts.titles(later=3700.0)
        assert [title for title in found if "did not land" in title] == told
        return
    retry = writer.begin_run()
    alerts.instance.add_run_tags(lost, {"dagster/auto_retry_run_id": retry})
    assert alerts.titles() == []
    writer.planned(retry, "curated", keys[1])
    assert alerts.titles() == []
    if outcome == "landed":
        writer.evaluated(retry, "curated", "not_empty", keys[1], passed=True)
        writer.materialized(retry, "curated", keys[1])
    writer.end_run(retry, outcome == "landed")
    assert [title for title in alerts.titles() if "all clear" not in title] == told
    assert alerts.titles() == []


def test_attempts_that_wait_while_others_fail_are_told_by_what_becomes_of_them(alerts: Alerts) -> None:
    """Backfills over one bad shard at once: a run has planned all assets before another has failed."""
    (key,) = alerts.shards(1)
    assets = ("curated", "scores", "filtered")
    told = "1 of 1 shard did not land: curated in backfill"

    def launch() -> tuple[Writer, str]:
        writer = alerts.writer()
        writer.begin_backfill([key])
        run = writer.begin_run(assets)
        for asset in assets:
            writer.planned(run, asset, key)
        return writer, run

    def fail(writer: Writer, run: str, first: list[str], then: list[str]) -> None:
        writer.failed(run, "curated", key, "a bad one")
        assert alerts.titles() == first
        for asset in assets[1:]:
            writer.failed(run, asset, key, "not made")
        writer.fail_step(run, "curated_landed")
        writer.end_run(run, False)
        assert alerts.titles() == then

    fail(*launch(), [], [told])
    (one, other), (last, run) = (launch(), launch()), launch()
    fail(*one, [], [])
    fail(*other, [], [])
    last.materialized(run, "curated", key)
    assert alerts.titles() == [f"all clear: {told}"]
    for asset in assets[1:]:
        last.materialized(run, asset, key)
    last.end_run(run, True)
    assert alerts.titles() == []


@pytest.mark.parametrize("has_shards", [True, False])
@pytest.mark.parametrize("will_retry", ["true", "false", None])
def test_a_failed_run_is_judged_once_dagster_has_said_whether_it_starts_it_again(
    hook: Webhook, tmp_path: Path, will_retry: str | None, has_shards: bool
) -> None:
    with open_instance(tmp_path / "home", OURS, run_retries={"enabled": True}) as instance:
        alerts = alerts_of(instance, hook, tmp_path)
        writer, (key,) = alerts.writer(), alerts.shards(1)
        run = writer.begin_run(["curated"])
        if has_shards:
            writer.planned(run, "curated", key)
        writer.fail_untagged(run)
        assert alerts.titles() == []
        if will_retry is None:  # who should have said so died, too
            told = alerts.titles(later=90.0)
        else:
            instance.add_run_tags(run, {"dagster/will_retry": will_retry})
            told = alerts.titles()
        failed = "1 shard of curated did not land in run" if has_shards else "Failed: assets in run"
        assert told == ([] if will_retry == "true" else [failed])


@pytest.mark.parametrize("check", ["ERROR", "WARN"])
def test_bad_shards_that_are_tried_again_are_neither_told_nor_clear_before_they_have_landed(
    alerts: Alerts, check: str
) -> None:
    """As the choice *Failed* of the UI does: a backfill with a run for each, one after the other."""
    writer, (first, good, last) = alerts.writer(), alerts.shards(3)

    def attempt(run: str, key: str, passed: bool) -> None:
        writer.evaluated(run, "curated", "not_empty", key, passed, check)
        if passed or check == "WARN":
            writer.materialized(run, "curated", key)

    begun = writer.begin_run()
    for key in (first, good, last):
        writer.planned(begun, "curated", key)
        attempt(begun, key, key == good)
    writer.end_run(begun, check == "WARN")
    (told,) = alerts.titles()
    for _ in range(2):
        writer.begin_backfill([first, last])
        runs = {key: writer.begin_run() for key in (first, last)}
        for key, run in runs.items():  # queued
            writer.planned(run, "curated", key)
        assert alerts.titles() == []
        for key, run in runs.items():
            attempt(run, key, False)
            assert alerts.titles() == []
            writer.end_run(run, check == "WARN")
            assert alerts.titles() == []
        writer.end_backfill("COMPLETED_SUCCESS" if check == "WARN" else "COMPLETED_FAILED")
        assert alerts.titles() == []
    for key, all_clear in ((first, []), (last, [f"all clear: {told}"])):
        mended = writer.begin_run()
        writer.planned(mended, "curated", key)
        assert alerts.titles() == []
        attempt(mended, key, True)
        writer.end_run(mended, True)
        assert alerts.titles() == all_clear


def test_a_shard_that_fails_again_for_the_same_reason_is_not_told_again(
    alerts: Alerts, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    toy = Toy(tmp_path, instance)
    toy.shards(4)
    told = []
    with warm_workers():
        for content in ("RAISE", "RAISE", "KILL", "fine", "RAISE"):
            toy.shard("k03", content)
            toy.run("all", "k01", "k04")
            told.append(alerts.titles(alert_on="error"))
    missing = "1 of 4 shards did not land: curated in run"
    assert told == [[missing], [], [missing], [f"all clear: {missing}"], [missing]]


def test_only_what_is_new_of_a_later_backfill_is_told(alerts: Alerts) -> None:
    keys = alerts.shards(6)
    for failing, told in (
        (keys[:3], ["3 of 3 shards did not land: curated in backfill"]),
        (keys[:2], []),
        (keys[1:5], ["2 of 4 shards did not land: curated in backfill"]),
        (keys[:5], []),
    ):
        writer = alerts.writer()
        writer.begin_backfill(failing)
        for key in failing:  # each in a run, which Dagster repeats
            for retried in ("true", "false"):
                run = writer.begin_run(tags={"dagster/will_retry": retried})
                writer.planned(run, "curated", key)
                writer.end_run(run, False)
        writer.end_backfill()
        assert alerts.titles() == told
        assert alerts.titles() == []
    third = alerts.hook.received[-1]["message"].splitlines()
    assert third[1:4] == [
        "besides: 2 shards as before",
        *(f"- {key}: the machine is gone" for key in keys[3:5]),
    ]


def test_a_shard_that_fails_a_check_again_is_told_again_only_after_it_has_passed(alerts: Alerts) -> None:
    first, second, other = alerts.shards(3)
    found = "Check not_empty of curated failed: {} in run"
    for failing, passing, told in (
        ([first, second], [], [found.format("2 shards")]),
        ([first], [], []),
        ([first], [second], []),
        ([first, second, other], [], [found.format("2 shards")]),
        ([], [first, second, other], [f"all clear: {found.format('2 shards')}"]),
        ([first], [], [found.format("1 shard")]),
    ):
        writer = alerts.writer()
        run = writer.begin_run()
        for key in (*failing, *passing):
            writer.evaluated(run, "curated", "not_empty", key, key in passing)
        meanwhile = alerts.titles()
        assert not (failing and meanwhile)  # those may not land for that, which would be the same cause
        writer.end_run(run, True)
        assert [*meanwhile, *alerts.titles()] == told


def test_a_problem_beyond_shards_is_told_again_only_if_it_is_another(alerts: Alerts) -> None:
    alerts.repository = alerts.with_check("curated", "whole")
    found = "Check whole of curated failed in run"
    for text, told in (("a", [found]), ("a", []), ("b", [found]), ("b", [])):
        writer = alerts.writer()
        run = writer.begin_run()
        writer.evaluated(run, "curated", "whole", None, False, summary=text)
        writer.end_run(run, True)
        assert alerts.titles() == told


def test_a_shard_that_did_not_land_for_a_failed_check_is_one_message(alerts: Alerts) -> None:
    first, second, third = alerts.shards(3)
    writer = alerts.writer()
    run = writer.begin_run()
    for key in (first, second, third):
        writer.planned(run, "curated", key)
        writer.planned(run, "filtered", key)
    for key in (first, second):
        writer.evaluated(run, "curated", "not_empty", key, False, summary="no line")
    writer.evaluated(run, "curated", "short_lines", first, False, "WARN")
    assert alerts.tick() == []
    for key in (second, third):
        writer.materialized(run, "curated", key)
    writer.materialized(run, "filtered", third)
    writer.end_run(run, False)
    titles = alerts.titles()
    assert titles == [
        "1 shard of curated did not land in run",
        "1 shard of filtered did not land in run",
    ]
    messages = [message["message"].splitlines() for message in alerts.hook.received]
    assert "failed checks: curated.not_empty (1), curated.short_lines (1)" in messages[0]
    assert "failed checks: curated.not_empty (1)" in messages[1]


def test_a_job_that_fails_each_night_for_the_same_reason_is_told_once(alerts: Alerts) -> None:
    prove = alerts.writer()
    prove.job = "prove"
    told = []
    for ok in (False, False, True, False):
        prove.end_run(prove.begin_run(), ok)
        told.append(alerts.titles())
    failed = "Failed: prove in run"
    assert told == [[failed], [], [f"all clear: {failed}"], [failed]]


def test_what_somebody_cancels_is_no_cause(alerts: Alerts) -> None:
    writer, keys = alerts.writer(), alerts.shards(1)
    run = writer.begin_run()
    writer.planned(run, "curated", keys[0])
    writer.cancel_run(run)
    assert alerts.titles() == []


def test_a_run_that_fails_by_itself_until_a_later_one_succeeds(alerts: Alerts) -> None:
    prove = alerts.writer()
    prove.job = "prove"
    prove.end_run(prove.begin_run(), False)
    (message,) = alerts.tick()
    assert message["title"].startswith("mm_assets: Failed: prove in run ")
    assert "reason: the machine is gone" in message["message"].splitlines()
    assert alerts.titles() == []
    other = alerts.writer()
    other.end_run(other.begin_run(["curated"]), True)
    assert alerts.titles() == []
    prove.end_run(prove.begin_run(), True)
    assert alerts.titles() == ["all clear: Failed: prove in run"]
    assert alerts.titles() == []


def test_a_failure_that_was_mended_before_the_first_tick_is_not_told(alerts: Alerts) -> None:
    prove = alerts.writer()
    prove.job = "prove"
    for ok in (False, True):
        prove.end_run(prove.begin_run(), ok)
    assert alerts.titles() == []


def test_runs_of_a_backfill_that_fail_by_themselves_are_one_message(alerts: Alerts) -> None:
    writer = alerts.writer()
    writer.begin_backfill(["a"])
    for ok in (False, False, True, False):
        writer.end_run(writer.begin_run(["summary"]), ok)
    (message,) = alerts.tick()
    assert "failed runs: 3" in message["message"].splitlines()
    assert "- summary" in message["message"].splitlines()


def test_a_backfill_that_the_daemon_gives_up(alerts: Alerts) -> None:
    writer = alerts.writer()
    writer.begin_backfill(["a"])
    writer.end_backfill("FAILED", error="the code location is gone\nTraceback")
    (message,) = alerts.tick()
    assert "reason: the code location is gone" in message["message"].splitlines()
    assert alerts.titles() == []


def test_a_run_without_events_hangs_until_it_does_something(alerts: Alerts) -> None:
    writer = alerts.writer()
    run = writer.begin_run(["curated"])
    writer.materialized(run, "curated", "k")
    assert alerts.titles(later=3000) == []
    (message,) = alerts.tick(later=2 * 3600)
    assert message["title"].startswith("mm_assets: Hangs: assets in run ")
    assert "hours without any event: 2.0" in message["message"].splitlines()
    assert alerts.titles(later=3 * 3600) == []
    writer.end_run(run, True)
    assert alerts.titles(later=3 * 3600) == ["all clear: Hangs: assets in run"]


def test_a_backfill_without_a_run_hangs(alerts: Alerts) -> None:
    writer = alerts.writer()
    writer.begin_backfill(["a"])
    assert alerts.titles(later=1800) == []
    assert alerts.titles(later=2 * 3600) == ["Hangs: assets in backfill"]


def test_assets_are_fresh_for_as_long_as_the_setting_says(alerts: Alerts) -> None:
    assert alerts.titles(later=7 * DAY) == []
    writer = alerts.writer()
    run = writer.begin_run()
    for asset in ("curated", "scores", "filtered", "table", "skipping", "summary"):
        writer.materialized(run, asset, "k")
    writer.end_run(run, True)
    assert alerts.titles(fresh_within=DAY, later=3600) == []
    (message,) = alerts.tick(fresh_within=DAY, later=1.5 * DAY)
    assert message["title"] == "mm_assets: Not fresh: no new materialization"
    lines = message["message"].splitlines()
    assert lines[1:3] == ["assets: 6 of 6", "MM_FRESH_WITHIN: 24 hours"]
    assert "- curated: last materialized 36.0 hours ago" in lines


def test_the_training_set_is_made_when_somebody_asks_and_never_stale(alerts: Alerts) -> None:
    @dg.asset
    def another() -> None: ...

    alerts.repository = dg.Definitions(
        assets=[training_set, another], resources={"training": None, "workers": None}
    ).get_repository_def()
    assert alerts.titles(fresh_within=DAY) == []
    (message,) = alerts.tick(fresh_within=DAY, later=1.5 * DAY)
    assert "assets: 1 of 1" in message["message"].splitlines()
    assert "- another: never materialized" in message["message"].splitlines()


def test_what_is_still_broken_is_told_again_though_nothing_happens(alerts: Alerts) -> None:
    keys = alerts.shards(2)
    writer = alerts.writer()
    run = writer.begin_run()
    writer.planned(run, "curated", keys[0])
    writer.end_run(run, False)
    (headline,) = alerts.titles()
    assert alerts.titles(later=6 * DAY) == []
    assert alerts.titles(later=8 * DAY) == [f"still broken: {headline}"]
    assert alerts.titles(later=9 * DAY) == []
    assert alerts.titles(later=16 * DAY, alert_remind=None) == []


def test_a_sensor_whose_ticks_fail(instance: dg.DagsterInstance, hook: Webhook, tmp_path: Path) -> None:
    @dg.sensor(job_name="all")
    def broken() -> None: ...

    alerts = alerts_of(instance, hook, tmp_path, [broken])
    writer = alerts.writer()
    writer.ticked("broken", "the bucket is gone\nTraceback")
    assert alerts.titles() == []  # once may be a restart
    writer.ticked("broken", "the bucket is gone\nTraceback")
    writer.ticked("of another code location", "no")
    writer.ticked("of another code location", "no")
    (message,) = alerts.tick()
    assert message["title"] == "mm_assets: The ticks of sensor broken fail"
    assert "reason: the bucket is gone" in message["message"].splitlines()
    writer.ticked("broken", None)
    assert alerts.titles() == ["all clear: The ticks of sensor broken fail"]


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (50, ["filtered_parquet keeps another share of items than usual in backfill"]),
        (78, []),  # within three times the spread of the runs before
    ],
)
def test_the_kept_share_drifts(alerts: Alerts, kept: int, told: list[str]) -> None:
    writer = alerts.writer()
    for rows in (80, 81, 79, 82, 80, 78):
        run = writer.begin_run()
        writer.materialized(run, "filtered_parquet", "a", _kept(rows))
        writer.end_run(run, True)
    assert alerts.titles() == []
    drifting = alerts.writer()
    drifting.begin_backfill(["a"])
    for key in ("a", "b"):
        run = drifting.begin_run()
        drifting.materialized(run, "filtered_parquet", key, _kept(kept))
        drifting.end_run(run, True)
        assert alerts.titles() == told
        told = [] if key == "a" else told
    unchanged = alerts.writer()
    run = unchanged.begin_run()
    unchanged.materialized(run, "filtered_parquet", "a", {**_kept(10), "unchanged": True})
    unchanged.end_run(run, True)
    assert alerts.titles() == []
    if kept == 50:
        message = alerts.hook.received[-1]["message"].splitlines()
        assert message[1:3] == [
            "kept: 50.0% of 100 items",
            "usual: 80.0% (median of 6 runs), 4.4% more or less",
        ]
        usual = alerts.writer()
        run = usual.begin_run()
        usual.materialized(run, "filtered_parquet", "a", _kept(80))
        usual.end_run(run, True)
        (clear,) = alerts.titles()
        assert clear.startswith("all clear: filtered_parquet keeps another share")


def test_more_is_in_quarantine_than_allowed(alerts: Alerts) -> None:
    writer = alerts.writer()
    run = writer.begin_run()
    for key, share in (("a", 0.1), ("b", 0.4)):
        writer.materialized(run, "curated_parquet", key, {"loss_share": share, "loss_share_of": 100})
    writer.end_run(run, True)
    assert alerts.titles(max_loss=0.5) == []
    run = writer.begin_run()
    writer.materialized(run, "curated_parquet", "b", {"loss_share": 0.4, "loss_share_of": 100})
    writer.end_run(run, True)
    (message,) = alerts.tick(max_loss=0.3)
    assert message["title"].startswith(
        "mm_assets: Quarantine share of curated_parquet is over MM_MAX_LOSS in run"
    )
    assert message["message"].splitlines()[1:3] == ["lost: 40.0% of 100 items", "MM_MAX_LOSS: 0.3"]


def _kept(rows: int) -> dict[str, float | bool]:
    return {"dagster/partition_row_count": rows, "items_in": 100}
