"""Maintenance keeps everything that a reader, a check or the next run may need."""

import time
from datetime import timedelta
from pathlib import Path

import dagster as dg
import lance
import pytest

from mm_assets.automation import sensors
from mm_assets.automation.sensors import delete_runs_before
from mm_assets.formats.lance.table import maintain
from mm_assets.storage.temporary import temporary_name
from mm_assets_tests.automation.conftest import Operated
from mm_assets_tests.formats.test_temporary_files import made_by
from mm_assets_tests.graph.deployment import ASSETS, FILTERED, materialized

TO_TABLE = [*FILTERED, "lance_table"]


def rows(table: Path) -> list[dict[str, object]]:
    found = lance.dataset(str(table)).to_table(["sample_id", "position", "binary_content"]).to_pylist()
    return sorted(found, key=lambda row: (row["sample_id"], row["position"]))


def test_a_maintained_table_has_the_same_rows_and_replaceable_shards(operated: Operated) -> None:
    for name in "abcd":  # a commit each
        assert operated.run([name], TO_TABLE).success
    table = Path(operated.storage, "lance", "items.lance")
    before = rows(table)
    versions = len(lance.dataset(str(table)).versions())
    lance.dataset(str(table)).tags.create("kept", versions // 2)
    tagged = lance.dataset(str(table), version="kept").count_rows()
    report = maintain(table, keep=timedelta(0))
    assert report.fragments_removed == 3 and report.versions_removed >= versions - 1
    assert rows(table) == before
    assert 0 < tagged < len(before)
    assert lance.dataset(str(table), version="kept").to_table().num_rows == tagged
    again = materialized(operated.run(assets=TO_TABLE))["lance_table"]
    assert {shard: made.metadata["unchanged"].value for shard, made in again.items()} == dict.fromkeys(
        "abcd", True
    )
    operated.shard("b", 2)
    assert operated.run(assets=TO_TABLE).success
    assert len(rows(table)) == len(before) + 3
    assert maintain(table).fragments_removed >= 0


def test_the_job_does_all_of_it(made: Operated) -> None:
    left = Path(made.storage, "curated", made_by(temporary_name("a.parquet"), pid="4000000", start="5"))
    left.write_bytes(b"half")
    assert made.run_job("maintenance")
    assert not left.exists()
    again = materialized(made.run())["curated_parquet"]
    assert all("unchanged" in made.metadata for made in again.values())


def test_only_runs_that_nothing_points_to_are_deleted(
    made: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "_RUNS_PER_QUERY", 1)
    (first,) = (run.run_id for run in made.instance.get_runs())
    made.shard("b", 2)
    second = made.run().run_id
    third = made.run(["a", "b"]).run_id
    assets = [*(dg.AssetKey(asset) for asset in ASSETS), dg.AssetKey("raw_shards")]
    assert delete_runs_before(made.instance, time.time() - 3600, assets) == 0
    assert delete_runs_before(made.instance, time.time() + 1, assets) == 0, "c and d are of the second run"
    fourth = made.run().run_id
    assert delete_runs_before(made.instance, time.time() + 1, assets) == 1
    left = {run.run_id for run in made.instance.get_runs()}
    assert left == {first, second, fourth} and third not in left, "the first two have observed raw shards"
    assert all(len(made.instance.get_materialized_partitions(asset)) == 4 for asset in assets[:-1])
