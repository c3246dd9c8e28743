"""Since when an asset has its code version, and when all its partitions are known to name it."""

from collections.abc import Iterator

import dagster as dg
import pytest

from mm_assets.graph.dagster_internals import SeenCodeVersions

A, B = dg.AssetKey("a"), dg.AssetKey("b")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def event(instance: dg.DagsterInstance) -> int:
    instance.report_runless_asset_event(dg.AssetMaterialization(A))
    return int(instance.event_log_storage.get_maximum_record_id() or 0)


def test_it_is_kept_from_the_first_time_a_version_is_seen(instance: dg.DagsterInstance) -> None:
    assert SeenCodeVersions(instance).see(A, "1") == ("1", 0, False, False)
    first = event(instance)
    assert SeenCodeVersions(instance).see(A, "1").since == 0
    assert SeenCodeVersions(instance).see(B, "1") == ("1", first, False, False), "each asset has its own"
    assert SeenCodeVersions(instance).see(A, "2") == ("2", first, False, True), "another one before"
    second = event(instance)
    assert SeenCodeVersions(instance).see(A, "1") == ("1", second, False, True), "back again is a change"


def test_a_confirmation_ends_with_another_version(instance: dg.DagsterInstance) -> None:
    seen = SeenCodeVersions(instance)
    first = seen.see(A, "1")
    seen.confirm(A, first)
    assert seen.see(A, "1").is_confirmed
    second = seen.see(A, "2")
    assert not second.is_confirmed
    seen.confirm(A, first)
    assert not seen.see(A, "2").is_confirmed, "who has looked at another version confirms nothing"
