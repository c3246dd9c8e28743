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


def test_a_replaced_raw_shard_makes_every_asset_stale_until_it_is_made_again(made: Operated) -> None:
    assert states(made) == {}, "a run that makes assets does not look at all others"
    assert made.tick(name="new_shards") == "9 checks have passed"
    assert states(made) == dict.fromkeys(["raw_shards", *ASSETS], (True, ""))
    made.shard("b", 2)
    made.tick(name="new_shards")
    found = states(made)
    assert found.pop("raw_shards") == (True, "")
    assert {passed for passed, _ in found.values()} == {False}
    assert found["curated_parquet"] == (False, "1 shard is stale: the raw shard has changed")
    assert found["final_tars"] == (False, "1 shard is stale: filtered_parquet is due")
    logged = made.instance.event_log_storage.get_maximum_record_id()
    assert made.tick(name="new_shards") == "4 raw shards are known"
    assert made.instance.event_log_storage.get_maximum_record_id() == logged, "said once"
    assert made.run().success
    made.tick(name="new_shards")
    assert set(states(made).values()) == {(True, "")}


def test_a_replaced_raw_shard_is_observed_at_once(made: Operated) -> None:
    made.shard("b", 2)
    made.tick(name="new_shards")
    (record,) = made.instance.fetch_observations(dg.AssetKey("raw_shards"), limit=1).records
    assert record.partition_key == "b" and record.run_id == ""


def test_a_removed_raw_shard_is_told_until_it_is_back(made: Operated) -> None:
    Path(made.raw, "a.tar").rename(Path(made.raw, "a.gone"))
    made.tick(name="new_shards")
    line = "1 raw shard is gone; mm-assets retire removes the outputs"
    assert states(made) == dict.fromkeys(ASSETS, (True, "")) | {"raw_shards": (False, line)}
    Path(made.raw, "a.gone").rename(Path(made.raw, "a.tar"))
    made.tick(name="new_shards")
    assert states(made)["raw_shards"] == (True, "")


def test_nothing_is_gone_while_a_location_cannot_be_listed(operated: Operated) -> None:
    elsewhere = Path(operated.raw).with_name("elsewhere")
    elsewhere.mkdir()
    Path(operated.raw, "d.tar").rename(elsewhere / "d.tar")
    operated.raw = f"{operated.raw} {elsewhere}"
    assert operated.run().success
    elsewhere.rename(elsewhere.with_name("unmounted"))
    operated.tick(name="new_shards")
    assert states(operated)["raw_shards"] == (True, "")


def test_a_changed_bound_makes_stale_what_it_decides(made: Operated) -> None:
    made.environment["MM_MAX_ASPECT_RATIO"] = "3"
    made.tick(name="new_shards")
    found = {asset: summary for asset, (passed, summary) in states(made).items() if not passed}
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


def test_a_run_that_was_lost_before_it_looked_keeps_nothing_from_being_told(made: Operated) -> None:
    made.instance.report_run_failed(made.planned_run(), "its process has died")
    made.shard("e")
    assert made.tick(name="new_shards").startswith("1 new raw shard")
    assert set(states(made).values()) == {(True, "")}
