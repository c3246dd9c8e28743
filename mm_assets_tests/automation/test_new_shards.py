"""The sensor adds a partition for every raw shard, and says what it finds nothing at."""

from pathlib import Path

import dagster as dg
import pytest

from mm_assets.automation.sensors import new_shards
from mm_assets.graph.raw import RawShards
from mm_assets_tests.aws_configuration import use_no_credentials
from mm_assets_tests.quick_instance import quick_instance


def evaluate(instance: dg.DagsterInstance, locations: str) -> dg.SensorResult | dg.SkipReason:
    context = dg.build_sensor_context(instance=instance, resources={"raw": RawShards(locations=locations)})
    found = new_shards(context)
    assert isinstance(found, dg.SensorResult | dg.SkipReason)
    return found


def test_shards_that_are_named_have_partitions_and_what_holds_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    locations = f"{tmp_path}/{{a,b}}.tar {tmp_path}/gone/*.tar"
    with quick_instance(tmp_path / "home") as instance:
        found = evaluate(instance, locations)
        assert isinstance(found, dg.SensorResult) and found.dynamic_partitions_requests is not None
        assert [list(request.partition_keys) for request in found.dynamic_partitions_requests] == [["a", "b"]]
        instance.add_dynamic_partitions("shards", ["a", "b"])
        assert evaluate(instance, locations) == dg.SkipReason(
            f"2 raw shards are known; {tmp_path}/gone/*.tar: no such file"
        )


def test_where_nothing_is_found_the_reason_is_one_line(tmp_path: Path) -> None:
    with quick_instance(tmp_path / "home") as instance:
        assert evaluate(instance, f"{tmp_path}/gone") == dg.SkipReason(
            f"no raw shards: {tmp_path}/gone: no such file"
        )


def test_a_store_that_cannot_be_asked_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is asked for a folder, or for the file that is named."""
    use_no_credentials(monkeypatch, tmp_path)
    hint = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    with quick_instance(tmp_path / "home") as instance:
        assert evaluate(instance, "s3://no-bucket/a") == dg.SkipReason(
            f"no raw shards: s3://no-bucket/a: {hint}"
        )
        assert evaluate(instance, "s3://no-bucket/b.tar") == dg.SkipReason(f"s3://no-bucket/b.tar: {hint}")


def test_locations_that_are_none_are_one_line(tmp_path: Path) -> None:
    with quick_instance(tmp_path / "home") as instance:
        found = evaluate(instance, f"{tmp_path}/s-{{0..999999999999}}.tar")
        assert isinstance(found, dg.SkipReason) and "the braces stand for 1,000,000,000,000 names" in str(
            found.skip_message
        )
        found = evaluate(instance, "odd://x/a.tar")
        assert found == dg.SkipReason("odd://x/a.tar: Protocol not known: odd")


def test_new_shards_come_with_a_warning_about_the_rest(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    with quick_instance(tmp_path / "home") as instance:
        evaluate(instance, f"{tmp_path} {tmp_path}/gone")
    assert f"{tmp_path}/gone: no such file" in capfd.readouterr().err
