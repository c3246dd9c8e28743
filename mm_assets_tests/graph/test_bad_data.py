"""Bad shards, bad samples and odd configuration in the graph: each costs what it must and nothing else."""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from mm_assets.definitions import build_definitions
from mm_assets.demo.shards import make_shards
from mm_assets.formats.registry import reader_for
from mm_assets_tests.graph.deployment import Deployment, failed_checks, materialized, write_tar

Deploy = Callable[..., Deployment]


def _document(sample: str, images: list[str | None] | None = None) -> bytes:
    return json.dumps({"sample_id": sample, "texts": ["x"], "images": images or [None]}).encode()


def _errors(result: dg.ExecuteInProcessResult, deployment: Deployment) -> str:
    records = deployment.instance.get_records_for_run(result.run_id).records
    return "\n".join(r.event_log_entry.user_message for r in records)


def test_under_the_strict_policy_a_repeated_id_fails_the_later_shard(tmp_path: Path, deploy: Deploy) -> None:
    make_shards(tmp_path / "raw", members=2, pdf=0, samples=3)
    write_tar(tmp_path / "raw" / "xa.tar", {"1.json": _document("twin")})
    write_tar(tmp_path / "raw" / "xb.tar", {"1.json": _document("twin")})
    deployment = deploy(MM_ON_MATERIALIZE_ERROR="error")
    result = deployment.run()
    assert not result.success
    events = materialized(result)
    assert (
        sorted(events["lance_table"]) == sorted(events["curated_parquet"]) == ["web-00000", "web-00001", "xa"]
    )
    assert ("curated_parquet", "landed", None) in failed_checks(result)
    assert "sample id 'twin' is already in shard 'xa'" in _errors(result, deployment)


@pytest.mark.parametrize(
    ("policy", "lands", "images"),
    [("error", False, 0), ("warn", True, 2), ("drop_row", True, 1), ("drop_sample", True, 1)],
)
def test_unreadable_image_is_an_error_row(
    tmp_path: Path, deploy: Deploy, policy: str, lands: bool, images: int
) -> None:
    make_shards(tmp_path / "spare", members=1, pdf=0, samples=4)
    with tarfile.open(tmp_path / "spare" / "web-00000.tar") as tar:
        picture = next(
            tar.extractfile(m).read() for m in tar.getmembers() if m.name.endswith((".jpg", ".png"))
        )  # type: ignore[union-attr]
    good = {"g.json": _document("good", ["g.0.png"]), "g.0.png": picture}
    bad = {"b.json": _document("bad", ["b.0.png"]), "b.0.png": b"no picture at all"}
    write_tar(tmp_path / "raw" / "mixed.tar", good | bad)
    deployment = deploy(MM_ON_MATERIALIZE_ERROR=policy, MM_MIN_ASPECT_RATIO="0", MM_MAX_ASPECT_RATIO="100")
    result = deployment.run()
    events = materialized(result)
    assert ("mixed" in events.get("curated_parquet", {})) is lands
    assert ("curated_parquet", "materialization_errors", "mixed") in failed_checks(result)
    if not lands:
        assert "mixed.tar: sample 'bad', position 0: unreadable image" in _errors(result, deployment)
        return
    rows = pq.read_table(tmp_path / "storage" / "curated" / "mixed.parquet").to_pylist()
    kept = [row for row in rows if row["modality"] == "image"]
    assert len(kept) == images
    assert {row["binary_content"] for row in kept if row["sample_id"] == "good"} == {picture}
    if policy == "warn":
        assert [row["binary_content"] for row in kept if row["materialize_error"]] == [b"no picture at all"]
    assert ("bad" in {row["sample_id"] for row in rows}) is (policy != "drop_sample")


def test_outputs_are_no_raw_shards(tmp_path: Path, deploy: Deploy) -> None:
    make_shards(tmp_path / "raw", members=2, pdf=0, samples=3)
    deployment = deploy(storage=str(tmp_path / "raw" / "out"))
    deployment.run()
    again = deployment.run()
    assert again.success
    assert sorted(materialized(again)["curated_parquet"]) == ["web-00000", "web-00001"]


def test_locations_with_a_space_are_quoted(tmp_path: Path, deploy: Deploy) -> None:
    make_shards(tmp_path / "two words", members=1, pdf=0, samples=2)
    result = deploy(raw=f"'{tmp_path}/two words'").run()
    assert result.success
    assert list(materialized(result)["curated_parquet"]) == ["web-00000"]


def test_files_per_partition_loses_no_file(
    tmp_path: Path, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = make_shards(tmp_path / "raw", members=3, pdf=0, samples=4)
    from mm_assets.resources.raw_shards import RawShards

    listing = RawShards(locations=str(tmp_path / "raw"), files_per_partition=2).listing()
    assert {key: raw.files for key, raw in listing.items()} == {
        "web-00000+1": (str(shards[0]), str(shards[1])),
        "web-00002": (str(shards[2]),),
    }
    monkeypatch.setattr(RawShards, "listing", lambda _: listing)
    result = deploy().run()
    assert result.success
    counts = {
        key: made.metadata["samples"].value for key, made in materialized(result)["curated_parquet"].items()
    }
    assert counts == {"web-00000+1": 8, "web-00002": 4}


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("MM_WORKERS", "many", "MM_WORKERS must be a whole number, not 'many'"),
        ("MM_WORKERS", "-1", "MM_WORKERS must not be negative"),
        ("MM_MIN_ASPECT_RATIO", "-3", "MM_MIN_ASPECT_RATIO must not be negative: -3"),
        ("MM_MAX_ASPECT", "3", "MM_MAX_ASPECT: no such setting; the nearest is MM_MAX_ASPECT_RATIO"),
        (
            "MM_ON_MATERIALIZE_ERROR",
            "ignore",
            "MM_ON_MATERIALIZE_ERROR must be one of error, warn, drop_row, drop_sample, not 'ignore'",
        ),
        ("MM_RAW_SHARDS", "'no end", "No closing quotation"),
    ],
)
def test_bad_settings_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, complaint: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=complaint):
        build_definitions().resources["raw"].listing()  # type: ignore[index]


def test_lost_storage_is_made_again(tmp_path: Path, deploy: Deploy) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=1, samples=3)
    deployment = deploy()
    deployment.run()
    before = {p.name: p.read_bytes() for p in (tmp_path / "storage" / "webdataset").glob("*.tar")}
    shutil.rmtree(tmp_path / "storage" / "webdataset")
    shutil.rmtree(tmp_path / "storage" / "lance")
    result = deployment.run()
    assert result.success
    events = materialized(result)
    assert all("unchanged" in made.metadata for made in events["filtered_parquet"].values())
    assert {p.name: p.read_bytes() for p in (tmp_path / "storage" / "webdataset").glob("*.tar")} == before
    rows = sum(b.num_rows for b in reader_for("lance", str(tmp_path / "storage" / "lance")))
    assert (
        rows
        == pq.read_table(tmp_path / "storage" / "filtered" / "web-00000.parquet").num_rows
        + pq.read_table(tmp_path / "storage" / "filtered" / "pdf-00000.parquet").num_rows
    )
