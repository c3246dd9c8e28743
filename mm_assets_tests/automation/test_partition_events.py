"""Canaries: what `partition_events` relies on in Dagster 1.13.27 beyond its documentation."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from mm_assets.automation import (
    EventId,
    first_attempts,
    latest_events,
    latest_versions,
    made_from,
)
from mm_assets.graph import Shard
from mm_assets.graph.dagster_internals import observed_version, provenance
from mm_assets.graph.instance_queries import logged_at
from mm_assets_tests.event_log.databases import OURS, open_instance

KEY, UP = dg.AssetKey(["some", "asset"]), dg.AssetKey(["up", "stream"])
PARTS = dg.StaticPartitionsDefinition(["a", "b", "c"])
MADE = dg.DagsterEventType.ASSET_MATERIALIZATION
PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
OBSERVED = dg.DagsterEventType.ASSET_OBSERVATION


@pytest.fixture(params=["sqlite", "postgres"])
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with ExitStack() as stack:
        url = None
        if request.param == "postgres":
            url = stack.enter_context(request.getfixturevalue("postgres").database("partition_events"))
        yield stack.enter_context(open_instance(tmp_path, OURS, url))


def run(
    instance: dg.DagsterInstance,
    first: str,
    last: str,
    made: str,
    version: str,
    before: Callable[[str], None] | None = None,
) -> str:
    """A run that is to make a range of partitions, and makes some; what to do before each."""

    @dg.asset(key=KEY, partitions_def=PARTS)
    def some(context: dg.AssetExecutionContext) -> Iterator[dg.Output[None]]:
        for key in made:
            if before is not None:
                before(key)
            tags = provenance(version, "7+x", {UP.to_user_string(): Shard(key, "", f"{version} of up", 5)})
            context.log_event(dg.AssetMaterialization(KEY, partition=key, tags=tags))
        raise dg.Failure("so that Dagster logs no materializations of its own")
        yield

    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    return dg.materialize([some], instance=instance, tags=tags, raise_on_error=False).run_id


def test_the_latest_event_of_each_partition_with_its_run(instance: dg.DagsterInstance) -> None:
    assert latest_events(instance, KEY, MADE) == {}
    first = run(instance, "a", "c", "ab", "one")
    second = run(instance, "b", "b", "b", "two")
    third = run(instance, "a", "a", "", "three")
    made, planned = latest_events(instance, KEY, MADE), latest_events(instance, KEY, PLANNED)
    assert {key: event.run_id for key, event in made.items()} == {"a": first, "b": second}
    assert {key: event.run_id for key, event in planned.items()} == {"a": third, "b": second, "c": first}
    assert planned["b"].storage_id < made["b"].storage_id, "a run plans before it makes"
    assert made["a"].storage_id < planned["a"].storage_id, "ids grow with time"
    ids = instance.get_latest_storage_id_by_partition(KEY, MADE)
    assert ids == {key: event.storage_id for key, event in made.items()}, "the documented ids"


def test_the_first_attempt_since_a_partition_was_made(instance: dg.DagsterInstance) -> None:
    assert first_attempts(instance, KEY) == {}
    run(instance, "a", "c", "a", "one")
    planned = latest_events(instance, KEY, PLANNED)
    for _ in range(2):
        before = datetime.now(UTC)
        run(instance, "a", "c", "", "two")
    again = latest_events(instance, KEY, PLANNED)
    found = first_attempts(instance, KEY)
    assert (found["b"], found["c"]) == (planned["b"].storage_id, planned["c"].storage_id)
    assert planned["a"].storage_id < found["a"] < again["a"].storage_id
    assert before <= logged_at(instance, again["a"].storage_id) <= datetime.now(UTC)
    assert logged_at(instance, found["a"]) < before
    run(instance, "a", "b", "ab", "three")
    assert first_attempts(instance, KEY) == {"c": found["c"]}


def test_runs_whose_events_alternate(instance: dg.DagsterInstance) -> None:
    inner: list[str] = []
    outer = run(
        instance, "a", "c", "abc", "one", lambda key: inner.append(run(instance, key, key, key, "two"))
    )
    made = latest_events(instance, KEY, MADE)
    assert {key: event.run_id for key, event in made.items()} == dict.fromkeys("abc", outer)
    planned = latest_events(instance, KEY, PLANNED)
    assert [planned[key].run_id for key in "abc"] == inner
    assert made["a"].storage_id < planned["b"].storage_id < made["b"].storage_id


def test_versions_and_what_a_partition_was_made_from(instance: dg.DagsterInstance) -> None:
    run(instance, "a", "c", "abc", "one")
    run(instance, "b", "b", "b", "two")
    assert latest_versions(instance, KEY, MADE) == {"a": "one", "b": "two", "c": "one"}
    latest = latest_events(instance, KEY, MADE)
    found = made_from(instance, [latest[key].storage_id for key in "ab"], [UP])
    assert found == {"a": ("7+x", {UP: "one of up"}), "b": ("7+x", {UP: "two of up"})}
    many = [latest["c"].storage_id] * 1 + list(range(10_000, 11_500))
    assert set(made_from(instance, many, [UP])) == {"c"}, "in batches"


def test_events_outside_of_runs_and_of_wiped_assets(instance: dg.DagsterInstance) -> None:
    for version in ("one", "two"):
        instance.report_runless_asset_event(
            dg.AssetObservation(KEY, partition="a", tags=observed_version(version))
        )
    (event,) = latest_events(instance, KEY, OBSERVED).values()
    assert isinstance(event, EventId)
    assert latest_versions(instance, KEY, OBSERVED) == {"a": "two"}
    run(instance, "a", "a", "a", "one")
    instance.wipe_assets([KEY])
    assert latest_events(instance, KEY, MADE) == {}
