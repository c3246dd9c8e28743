"""Raw shards are observed once per version, and what is made from them names the version it was made from."""

import logging
from typing import Any

import dagster as dg
import pytest

from mm_assets.formats.raw_shards import Listing
from mm_assets.graph import ShardSet, dagster_internals
from mm_assets_tests.graph.io_manager import toy
from mm_assets_tests.graph.io_manager.conftest import Toy

RAW = dg.AssetKey("raw_shards")


def tags(record: dg.EventLogRecord) -> dict[str, str]:
    event = record.asset_materialization or record.asset_observation
    assert event is not None and event.tags is not None
    return dict(event.tags)


def observed(deployment: Toy) -> list[tuple[str, str]]:
    """(shard, version) of all observations, oldest first."""
    records = deployment.history("raw_shards", "observations")
    return [(str(r.partition_key), tags(r)["dagster/data_version"]) for r in records]


def test_observation_logs_only_new_and_changed_shards(deployment: Toy) -> None:
    keys = deployment.shards(3)
    assert deployment.run("observe").success
    first = observed(deployment)
    assert sorted(key for key, _ in first) == keys
    assert deployment.run("observe").success
    assert observed(deployment) == first
    deployment.shard("k02", "changed\n")
    deployment.shard("k04")
    assert deployment.run("observe").success
    assert sorted(key for key, _ in observed(deployment)[3:]) == ["k02", "k04"]
    latest = dagster_internals.latest_observations(deployment.instance, RAW, ["k01", "k02", "k09"])
    assert {key: event.uri for key, event in latest.items()} == {
        key: str(deployment.raw / f"{key}.txt") for key in ("k01", "k02")
    }
    assert latest["k02"].version == dict(observed(deployment)[3:])["k02"]


def test_run_uses_the_observation_that_is_there(deployment: Toy) -> None:
    deployment.shards(2)
    deployment.run("observe")
    assert deployment.run("two", "k01", "k02").success
    assert len(observed(deployment)) == 2
    pointers = {
        key: event.pointer
        for key, event in dagster_internals.latest_observations(
            deployment.instance, RAW, ["k01", "k02"]
        ).items()
    }
    for record in deployment.history("curated"):
        assert tags(record)["dagster/input_event_pointer/raw_shards"] == str(
            pointers[str(record.partition_key)]
        )


def test_shard_never_observed_is_observed_by_the_run(deployment: Toy) -> None:
    deployment.shards(2)
    run = deployment.run("two", "k01", "k02")
    assert run.success
    records = deployment.history("raw_shards", "observations")
    assert [r.run_id for r in records] == [run.run_id] * 2
    pointer = {str(r.partition_key): str(r.storage_id) for r in records}
    curated = {str(r.partition_key): tags(r) for r in deployment.history("curated")}
    assert {key: t["dagster/input_event_pointer/raw_shards"] for key, t in curated.items()} == pointer


def test_shard_changed_since_its_observation_is_seen_by_the_run(deployment: Toy) -> None:
    """Mending a raw shard and running again is enough; no observation has to be launched in between."""
    deployment.shards(2)
    deployment.run("observe")
    deployment.run("two", "k01", "k02")
    deployment.shard("k02", "mended\n")
    assert deployment.run("two", "k01", "k02").success
    assert (deployment.root / "curated" / "k02.out").read_text() == "MENDED\n"
    assert [key for key, _ in observed(deployment)[2:]] == ["k02"]


def test_shard_that_is_gone_fails_by_name(deployment: Toy) -> None:
    deployment.shards(2)
    (deployment.raw / "k01.txt").unlink()
    run = deployment.run("two", "k01", "k02")
    assert deployment.landed("scores", run) == ["k02"]
    assert (
        deployment.log(run)[0]
        == "shard 'k01' of curated: input missing: shard 'k01' of raw_shards: no such raw shard"
    )
    for asset in ("curated", "scores"):
        latest = dagster_internals.latest_observations(deployment.instance, dg.AssetKey(asset), ["k01"])
        assert "`mm-assets retire k01`" in latest["k01"].metadata["what_to_do"], asset


def test_loading_outside_of_a_run_logs_nothing(deployment: Toy) -> None:
    deployment.shards(2)
    loaded = deployment.definitions().load_asset_value(
        "raw_shards", partition_key="k02", instance=deployment.instance
    )
    assert isinstance(loaded, ShardSet)
    assert [(s.key, s.uri, s.pointer) for s in loaded] == [("k02", str(deployment.raw / "k02.txt"), None)]
    assert observed(deployment) == []


@pytest.mark.parametrize("job", ["observe", "two"])
def test_a_location_without_shards_is_a_warning_in_the_log(
    deployment: Toy, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    deployment.shards(2)
    listing: Any = toy.ToyRawShards.listing
    monkeypatch.setattr(
        toy.ToyRawShards, "listing", lambda self: Listing(listing(self), ["/gone: no such file"])
    )
    run = deployment.run(job, *(("k01", "k02") if job == "two" else ()))
    assert run.success
    assert deployment.log(run, logging.WARNING) == ["/gone: no such file"]
