"""Shards wait for verdicts on duplicates, which are found without a click, and are then filtered."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mm_assets_tests.automation.conftest import Operated
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.graph.deployment import ASSETS

SCORED = {"curated_parquet", "image_scores", "sample_scores", "quarantine"}
FILTERED = set(ASSETS) - SCORED


@pytest.fixture
def dedup(operated: Operated) -> Operated:
    """With shards ``b`` and ``c``, each a document with the same text."""
    for name in "abcd":
        Path(operated.raw, f"{name}.tar").unlink()
    operated.environment["MM_DEDUP_DOCUMENTS"] = "exact"
    for name in "bc":
        add(operated, name)
    return operated


def add(operated: Operated, name: str) -> None:
    make_tar(Path(operated.raw, f"{name}.tar"), [(f"{name}.json", {"texts": ["one text of all"]})])


def kept(operated: Operated) -> list[str]:
    found = Path(operated.storage, "filtered").glob("*.parquet")
    return sorted({row for path in found for row in pq.read_table(path)["sample_id"].to_pylist()})


def latest(operated: Operated) -> tuple[str, set[str], list[str]]:
    """Started by, assets and shards of the latest backfill."""
    started_by, targets = operated.backfills()[0]
    (keys,) = {tuple(keys) for keys in targets.values()}
    return started_by, set(targets), list(keys)


def carry_out(operated: Operated) -> None:
    """Make what the latest backfill has to, as its daemon would."""
    _, assets, targets = latest(operated)
    keys = [key for key in operated.instance.get_dynamic_partitions("shards") if key in targets]
    assert operated.run(keys, assets=sorted(assets)).success
    operated.finish_backfills()


@pytest.mark.parametrize("mode", ["new", "all"])
def test_new_shards_are_scored_then_looked_at_then_filtered(dedup: Operated, mode: str) -> None:
    dedup.tick(name="new_shards")
    dedup.tick(mode)
    dedup.tick(mode)
    assert latest(dedup) == ("sensor automation", SCORED, ["b", "c"])
    carry_out(dedup)
    assert dedup.requested == []
    dedup.tick(mode)
    dedup.tick(mode)
    assert dedup.requested == ["duplicates"]
    assert dedup.run_job("duplicates")
    assert latest(dedup) == ("job duplicates", FILTERED, ["b", "c"])
    carry_out(dedup)
    assert kept(dedup) == ["b"]
    assert [dedup.tick(mode) for _ in range(2)] == ["nothing is due"] * 2

    add(dedup, "a")  # is preferred: the verdicts on another shard change
    dedup.tick(name="new_shards")
    for _ in range(2):
        dedup.tick(mode)
    assert latest(dedup) == ("sensor automation", SCORED, ["a"])
    carry_out(dedup)
    for _ in range(2):
        dedup.tick(mode)
    assert dedup.requested == ["duplicates"]
    assert dedup.run_job("duplicates")
    assert latest(dedup) == ("job duplicates", FILTERED, ["a", "b", "c"])
    carry_out(dedup)
    assert kept(dedup) == ["a"]


def test_refresh_has_verdicts_found_and_sees_those_that_have_changed(dedup: Operated) -> None:
    dedup.tick(name="new_shards")
    assert dedup.run_job("refresh")
    dedup.tick(name="new_shards")
    assert latest(dedup) == ("schedule refresh", SCORED, ["b", "c"])
    assert "wait until duplicates are looked for" in dedup.tick(name="new_shards")
    carry_out(dedup)
    dedup.tick(name="new_shards")
    assert dedup.requested == ["duplicates"]
    assert dedup.run_job("duplicates")
    carry_out(dedup)
    assert kept(dedup) == ["b"]

    add(dedup, "a")
    dedup.tick(name="new_shards")
    assert dedup.run(["a"], assets=sorted(SCORED)).success
    assert dedup.run_job("duplicates")
    dedup.finish_backfills()  # somebody has canceled it
    assert dedup.run_job("refresh")
    dedup.tick(name="new_shards")
    assert latest(dedup) == ("schedule refresh", FILTERED, ["a", "b", "c"])
    (backfill, *_) = dedup.instance.get_backfills()
    assert backfill.title == "3 shards: 2 other duplicates, 1 never made"


def test_a_shard_that_stays_failed_keeps_no_other_waiting(dedup: Operated) -> None:
    Path(dedup.raw, "x.tar").write_bytes(b"no tar" * 100)
    dedup.tick(name="new_shards")
    assert dedup.run_job("refresh")
    dedup.tick(name="new_shards")
    assert not dedup.run(assets=sorted(SCORED)).success
    dedup.finish_backfills()
    dedup.tick(name="new_shards")
    assert dedup.requested == ["duplicates"]
    assert dedup.run_job("duplicates")
    assert latest(dedup)[2] == ["b", "c"]


def test_other_filters_have_verdicts_found_anew(dedup: Operated) -> None:
    dedup.tick(name="new_shards")
    assert dedup.run(assets=sorted(SCORED)).success
    assert dedup.run_job("duplicates")
    carry_out(dedup)
    dedup.environment["MM_MIN_WORDS"] = "3"
    for _ in range(2):
        dedup.tick("all")
    assert dedup.requested == ["duplicates"]
    assert len(dedup.backfills()) == 1
