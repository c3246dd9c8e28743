"""The sensor adds a partition for every raw shard, and says what it finds nothing at."""

from pathlib import Path

import dagster as dg
import pytest

from mm_assets.resources.raw_shards import RawShards
from mm_assets.sensors import new_shards


def evaluate(instance: dg.DagsterInstance, locations: str) -> dg.SensorResult | dg.SkipReason:
    context = dg.build_sensor_context(instance=instance, resources={"raw": RawShards(locations=locations)})
    found = new_shards(context)
    assert isinstance(found, dg.SensorResult | dg.SkipReason)
    return found


def test_shards_that_are_named_have_partitions_and_what_holds_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    locations = f"{tmp_path}/{{a,b}}.tar {tmp_path}/gone/*.tar"
    with dg.instance_for_test() as instance:
        found = evaluate(instance, locations)
        assert isinstance(found, dg.SensorResult) and found.dynamic_partitions_requests is not None
        assert [list(request.partition_keys) for request in found.dynamic_partitions_requests] == [["a", "b"]]
        instance.add_dynamic_partitions("shards", ["a", "b"])
        assert evaluate(instance, locations) == dg.SkipReason(f"all 2 raw shards are known; {tmp_path}/gone/*.tar: no such file")


def test_where_nothing_is_found_the_reason_is_one_line(tmp_path: Path) -> None:
    with dg.instance_for_test() as instance:
        assert evaluate(instance, f"{tmp_path}/gone") == dg.SkipReason(f"no raw shards: {tmp_path}/gone: no such file")


def test_new_shards_come_with_a_warning_about_the_rest(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    with dg.instance_for_test() as instance:
        evaluate(instance, f"{tmp_path} {tmp_path}/gone")
    assert f"{tmp_path}/gone: no such file" in capfd.readouterr().err
