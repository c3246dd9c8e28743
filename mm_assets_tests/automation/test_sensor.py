"""The sensor `automation`: what it has made in each mode, and what it leaves alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_assets import automation
from mm_assets.formats.raw_shards import Listing
from mm_assets.graph.raw import RawShards
from mm_assets_tests.automation.conftest import Operated
from mm_assets_tests.graph.deployment import ASSETS, CURATED, write_tar
from mm_assets_tests.graph.samples import samples

AFTER_FILTER = sorted(["filtered_parquet", "final_tars", "lance_table", "arrow_cache"])


def test_new_shards_are_taken_once_they_have_been_the_same_for_a_tick(operated: Operated) -> None:
    operated.tick(name="new_shards")
    assert operated.tick() == "4 shards wait until they are seen unchanged at the next tick"
    operated.shard("b", 2)  # still being uploaded
    told = operated.tick()
    assert told.endswith("1 shard waits until it is seen unchanged at the next tick")
    (started_by, targets) = operated.backfills()[0]
    assert started_by == "sensor automation"
    assert targets == {asset: ["a", "c", "d"] for asset in ASSETS}
    operated.tick()
    assert [set(map(tuple, targets.values())) for _, targets in operated.backfills()] == [
        {("b",)},
        {("a", "c", "d")},
    ]


def test_the_cursor_of_many_waiting_shards_is_short(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"part-{number:05d}/of-a-long-dataset-name/shard-{number:05d}" for number in range(10_000)]
    shards: dict[str, Any] = {name: SimpleNamespace(version=f"mtime:{name}") for name in names}
    listed = Listing(shards)
    monkeypatch.setattr(RawShards, "listing", lambda _: listed)
    operated.instance.add_dynamic_partitions("shards", names)
    assert operated.tick().startswith("10000 shards wait until they are seen unchanged")
    assert operated.cursor is not None and len(operated.cursor) < 100_000
    operated.cursor = '{"part-00000": "of an earlier release"}'
    assert operated.tick().startswith("10000 shards wait until they are seen unchanged")


def test_what_a_backfill_or_a_run_is_about_to_make_is_not_asked_for_again(operated: Operated) -> None:
    operated.tick(name="new_shards")
    for _ in range(5):
        told = operated.tick()
    assert told == "nothing is due"
    assert len(operated.backfills()) == 1
    operated.finish_backfills()  # somebody has cancelled it before it made anything
    operated.tick()
    operated.tick()
    assert len(operated.backfills()) == 2


def test_only_the_mode_all_takes_changed_shards_and_settings(made: Operated) -> None:
    made.shard("c", 2)
    made.environment["MM_MIN_ASPECT_RATIO"] = "0.5"
    for mode in ("new", "off"):
        assert made.tick(mode) == "nothing is due"
    made.tick("all")
    made.tick("all")
    by_shards = {tuple(keys): sorted(a for a in targets if targets[a] == keys)
                 for _, targets in made.backfills() for keys in targets.values()}  # fmt: skip
    assert by_shards == {("c",): sorted(ASSETS), ("a", "b", "d"): AFTER_FILTER}


def test_a_failed_shard_is_left_alone_until_it_is_mended(failed: Operated) -> None:
    assert [failed.tick("all") for _ in range(2)] == ["nothing is due"] * 2
    failed.shard("b")
    assert failed.tick("new") == "nothing is due"
    failed.tick("all")
    failed.tick("all")
    assert failed.backfills() == [("sensor automation", {asset: ["b"] for asset in ASSETS})]


def test_a_failed_shard_is_taken_when_a_setting_has_changed_since(failed: Operated) -> None:
    assert failed.tick("all") == "nothing is due"
    failed.environment["MM_SAMPLE_ID_FIELD"] = "name"
    failed.tick("all")
    failed.tick("all")
    assert failed.backfills() == [("sensor automation", {asset: list("abcd") for asset in ASSETS})]


def test_a_shard_that_lost_too_much_is_taken_once_when_the_bound_has_changed(failed: Operated) -> None:
    assert [failed.tick("all") for _ in range(2)] == ["nothing is due"] * 2
    failed.environment["MM_MAX_LOSS"] = "0.9"
    failed.tick("all")
    failed.tick("all")
    assert failed.backfills() == [("sensor automation", {asset: ["b"] for asset in ASSETS})]
    failed.finish_backfills()
    assert not failed.run(["b"]).success
    assert [failed.tick("all") for _ in range(2)] == ["nothing is due"] * 2


def test_removed_raw_shards_are_left_alone(made: Operated) -> None:
    Path(made.raw, "a.tar").unlink()
    assert [made.tick("all") for _ in range(2)] == ["nothing is due"] * 2


def test_raw_shards_that_cannot_be_listed_are_a_line(operated: Operated) -> None:
    Path(operated.raw).rename(Path(operated.raw).with_name("elsewhere"))
    assert operated.tick() == f"no raw shards: {operated.raw}: no such file"


def test_what_is_made_from_a_shard_that_stays_failed_is_not_asked_for(made: Operated) -> None:
    """Else it would be launched again for ever: it is made from the version before, and due again."""
    Path(made.raw, "b.tar").write_bytes(b"no tar" * 100)
    assert not made.run(assets=["curated_parquet"]).success
    assert [made.tick("all") for _ in range(2)] == ["nothing is due"] * 2
    Path(made.raw, "e.tar").write_bytes(b"no tar" * 100)
    assert not made.run(assets=["curated_parquet"]).success
    assert [made.tick("new") for _ in range(2)] == ["nothing is due"] * 2


def test_shards_of_a_run_that_was_lost_are_taken_again_after_a_while(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = operated.planned_run()
    operated.instance.report_run_failed(lost, "storage out of reach")
    assert [operated.tick("all") for _ in range(2)] == ["nothing is due"] * 2
    monkeypatch.setattr(automation, "_RETRY_SECONDS", -1)
    assert [operated.tick("new") for _ in range(2)] == ["nothing is due"] * 2
    operated.tick("all")
    operated.tick("all")
    assert operated.backfills() == [("sensor automation", {asset: list("abcd") for asset in ASSETS})]


def test_shards_of_a_canceled_run_are_left_alone(operated: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    operated.instance.report_run_canceled(operated.planned_run())
    monkeypatch.setattr(automation, "_RETRY_SECONDS", -1)
    assert [operated.tick("all") for _ in range(2)] == ["nothing is due"] * 2


OTHER_BOUNDS = {"bounds": {"min_aspect_ratio": 0.5}}


def policy(operated: Operated, name: str) -> dict[str, dict[str, Any]]:
    """What the launchpad sets for another policy for items that cannot be read."""
    return {"ingest_io_manager": {"root": operated.storage, "on_materialize_error": name}}


def test_a_launchpad_run_with_other_bounds_has_no_failed_shard_retried(failed: Operated) -> None:
    """What lies below the failed input would fail again: its input is missing."""
    assert failed.run(["a"], ["filtered_parquet"], launchpad=OTHER_BOUNDS).success
    for _ in range(3):
        failed.tick("all")
    assert failed.backfills() == [("sensor automation", {asset: ["a"] for asset in AFTER_FILTER})]


def test_a_launchpad_run_with_another_policy_has_no_failed_shard_retried(failed: Operated) -> None:
    assert failed.run(["a"], CURATED, launchpad=policy(failed, "drop_row")).success
    for _ in range(3):
        failed.tick("all")
    assert [assets["curated_parquet"] for _, assets in failed.backfills()] == [["a"]]


def test_a_shard_that_failed_in_a_launchpad_run_alone_is_taken_again(operated: Operated) -> None:
    operated.environment["MM_ON_MATERIALIZE_ERROR"] = "drop_row"
    assert operated.run().success
    write_tar(Path(operated.raw, "b.tar"), samples(3, "b") | {"b001.1.png": b"no image"})
    assert not operated.run(["b"], launchpad=policy(operated, "error")).success
    operated.tick("all")
    operated.tick("all")
    assert operated.backfills() == [("sensor automation", {asset: ["b"] for asset in ASSETS})]


def test_a_shard_below_a_failed_one_is_not_taken_after_its_own_run_was_lost(
    failed: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = failed.planned_run(["b"], AFTER_FILTER)
    failed.instance.report_run_failed(lost, "storage out of reach")
    monkeypatch.setattr(automation, "_RETRY_SECONDS", -1)
    assert [failed.tick("all") for _ in range(2)] == ["nothing is due"] * 2
