"""What is gone and what is stale is told by checks, without a run."""

from pathlib import Path

import dagster as dg

from mm_assets.automation.sensors import PRESENT, UP_TO_DATE
from mm_assets_tests.automation.conftest import Operated
from mm_assets_tests.graph.deployment import ASSETS


def states(operated: Operated) -> dict[str, tuple[bool, str]]:
    """Outcome and summary of each inventory check that was ever evaluated, by asset."""
    keys = [PRESENT, *(dg.AssetCheckKey(dg.AssetKey(asset), UP_TO_DATE) for asset in ASSETS)]
    found = operated.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    return {
        key.asset_key.to_user_string(): (
            record.evaluation.passed,
            str(record.evaluation.metadata["summary"].value),
        )
        for key, record in found.items()
        if record.evaluation is not None
    }


def test_a_replaced_raw_shard_makes_every_asset_stale_until_it_is_made_again(operated: Operated) -> None:
    assert operated.run().success
    assert states(operated) == {}, "a run that makes assets does not look at all others"
    assert operated.tick(name="new_shards") == "9 checks have passed"
    assert states(operated) == dict.fromkeys(["raw_shards", *ASSETS], (True, ""))
    operated.shard("b", 2)
    operated.tick(name="new_shards")
    found = states(operated)
    assert found.pop("raw_shards") == (True, "")
    assert {passed for passed, _ in found.values()} == {False}
    assert found["curated_parquet"] == (False, "1 shard is stale: the raw shard has changed")
    assert found["final_tars"] == (False, "1 shard is stale: filtered_parquet is due")
    logged = operated.instance.event_log_storage.get_maximum_record_id()
    assert operated.tick(name="new_shards") == "4 raw shards are known"
    assert operated.instance.event_log_storage.get_maximum_record_id() == logged, "said once"
    assert operated.run().success
    operated.tick(name="new_shards")
    assert set(states(operated).values()) == {(True, "")}


def test_a_replaced_raw_shard_is_observed_at_once(operated: Operated) -> None:
    assert operated.run().success
    operated.shard("b", 2)
    operated.tick(name="new_shards")
    (record,) = operated.instance.fetch_observations(dg.AssetKey("raw_shards"), limit=1).records
    assert record.partition_key == "b" and record.run_id == ""


def test_a_removed_raw_shard_is_told_until_it_is_back(operated: Operated) -> None:
    assert operated.run().success
    Path(operated.raw, "a.tar").rename(Path(operated.raw, "a.gone"))
    operated.tick(name="new_shards")
    line = "1 raw shard is gone; mm-assets retire removes the outputs"
    assert states(operated) == dict.fromkeys(ASSETS, (True, "")) | {"raw_shards": (False, line)}
    Path(operated.raw, "a.gone").rename(Path(operated.raw, "a.tar"))
    operated.tick(name="new_shards")
    assert states(operated)["raw_shards"] == (True, "")


def test_nothing_is_gone_while_a_location_cannot_be_listed(operated: Operated) -> None:
    elsewhere = Path(operated.raw).with_name("elsewhere")
    elsewhere.mkdir()
    Path(operated.raw, "d.tar").rename(elsewhere / "d.tar")
    operated.raw = f"{operated.raw} {elsewhere}"
    assert operated.run().success
    elsewhere.rename(elsewhere.with_name("unmounted"))
    operated.tick(name="new_shards")
    assert states(operated)["raw_shards"] == (True, "")


def test_a_changed_bound_makes_stale_what_it_decides(operated: Operated) -> None:
    assert operated.run().success
    operated.environment["MM_MAX_ASPECT_RATIO"] = "3"
    operated.tick(name="new_shards")
    found = {asset: summary for asset, (passed, summary) in states(operated).items() if not passed}
    is_due = "4 shards are stale: filtered_parquet is due"
    assert found == dict.fromkeys(["arrow_cache", "final_tars", "lance_table"], is_due) | {
        "filtered_parquet": "4 shards are stale: MM_MAX_ASPECT_RATIO was unset, is 3.0"
    }


def test_each_check_of_what_was_made_is_evaluated_and_stays_so(operated: Operated) -> None:
    """The UI counts what is older than the asset as not evaluated."""
    assert operated.tick(name="new_shards") == "4 new raw shards"
    operated.tick(name="new_shards")
    assert states(operated) == {}, "nothing was made"
    for keys in (None, ["b"]):
        assert operated.run(keys).success
        operated.tick(name="new_shards")
        for asset in ASSETS:
            assert operated.overview(asset, UP_TO_DATE)[0], "of the latest materialization"
        logged = operated.instance.event_log_storage.get_maximum_record_id()
        operated.tick(name="new_shards")
        assert operated.instance.event_log_storage.get_maximum_record_id() == logged, "said once"
    assert operated.overview("raw_shards", PRESENT.name)[0]


def test_a_run_that_was_lost_before_it_looked_keeps_nothing_from_being_told(operated: Operated) -> None:
    assert operated.run().success
    operated.instance.report_run_failed(operated.planned_run(), "its process has died")
    operated.shard("e")
    assert operated.tick(name="new_shards").startswith("1 new raw shard")
    assert set(states(operated).values()) == {(True, "")}
