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
from mm_assets.formats.registry import reader_for
from mm_assets_tests.formats.images.test_opening import REFUSED
from mm_assets_tests.graph.deployment import CURATED, Deployment, failed_checks, materialized, write_tar
from tools.demo import make_shards

Deploy = Callable[..., Deployment]


def _document(sample: str, images: list[str | None] | None = None) -> bytes:
    return json.dumps({"sample_id": sample, "texts": ["x"], "images": images or [None]}).encode()


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
    assert "sample id 'twin' is already in shard 'xa'" in deployment.log(result)


@pytest.mark.parametrize(
    ("policy", "lands", "images", "unreadable"),
    [
        ("error", False, 0, REFUSED["png zTXt bomb"]),
        ("warn", True, 2, REFUSED["bmp of 2 bits"]),
        ("drop_row", True, 1, b"no picture at all"),
        ("drop_sample", True, 1, REFUSED["png frame outside"]),
    ],
)
def test_unreadable_image_is_an_error_row(
    tmp_path: Path, deploy: Deploy, policy: str, lands: bool, images: int, unreadable: bytes
) -> None:
    make_shards(tmp_path / "spare", members=1, pdf=0, samples=4)
    with tarfile.open(tmp_path / "spare" / "web-00000.tar") as tar:
        picture = next(
            tar.extractfile(m).read() for m in tar.getmembers() if m.name.endswith((".jpg", ".png"))
        )  # type: ignore[union-attr]
    good = {"g.json": _document("good", ["g.0.png"]), "g.0.png": picture}
    bad = {"b.json": _document("bad", ["b.0.png"]), "b.0.png": unreadable}
    write_tar(tmp_path / "raw" / "mixed.tar", good | bad)
    deployment = deploy(MM_ON_MATERIALIZE_ERROR=policy, MM_MIN_ASPECT_RATIO="0", MM_MAX_ASPECT_RATIO="100")
    result = deployment.run(assets=CURATED)
    events = materialized(result)
    assert ("mixed" in events.get("curated_parquet", {})) is lands
    assert ("curated_parquet", "materialization_errors", "mixed") in failed_checks(result)
    if not lands:
        assert "mixed.tar: sample 'bad', position 0: unreadable image" in deployment.log(result)
        return
    rows = pq.read_table(tmp_path / "storage" / "curated" / "mixed.parquet").to_pylist()
    kept = [row for row in rows if row["modality"] == "image"]
    assert len(kept) == images
    assert {row["binary_content"] for row in kept if row["sample_id"] == "good"} == {picture}
    if policy == "warn":
        assert [row["binary_content"] for row in kept if row["materialize_error"]] == [unreadable]
    assert ("bad" in {row["sample_id"] for row in rows}) is (policy != "drop_sample")


def test_outputs_are_no_raw_shards(tmp_path: Path, deploy: Deploy) -> None:
    make_shards(tmp_path / "raw", members=2, pdf=0, samples=3)
    deployment = deploy(storage=str(tmp_path / "raw" / "out"))
    deployment.run()
    again = deployment.run(assets=CURATED)
    assert again.success
    assert sorted(materialized(again)["curated_parquet"]) == ["web-00000", "web-00001"]


def test_locations_with_a_space_are_quoted(tmp_path: Path, deploy: Deploy) -> None:
    make_shards(tmp_path / "two words", members=1, pdf=0, samples=2)
    result = deploy(raw=f"'{tmp_path}/two words'").run(assets=CURATED)
    assert result.success
    assert list(materialized(result)["curated_parquet"]) == ["web-00000"]


def _samples(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    made = materialized(result)["curated_parquet"]
    return {key: event.metadata["samples"].value for key, event in made.items()}


@pytest.mark.parametrize("size", ["1", "2", "100"])
def test_sample_ids_do_not_depend_on_groups(tmp_path: Path, deploy: Deploy, size: str) -> None:
    for number in (0, 1, 2):
        write_tar(tmp_path / "raw" / f"web-{number}.tar", {"0.json": _document("same")})
    deployment = deploy(MM_SHARDS_PER_PARTITION=size, MM_SAMPLE_ID_PREFIX="shard")
    assert deployment.run(assets=CURATED).success
    ids = pq.ParquetDataset(f"{deployment.storage}/curated").read(["sample_id"]).column(0)
    assert sorted(ids.unique().to_pylist()) == ["web-0/same", "web-1/same", "web-2/same"]


def test_shards_per_partition(tmp_path: Path, deploy: Deploy) -> None:
    shards = make_shards(tmp_path / "raw", members=5, pdf=0, samples=4)
    late = shards.pop(0)
    late.rename(tmp_path / "late")
    deployment = deploy(MM_SHARDS_PER_PARTITION="2")
    result = deployment.run(assets=CURATED)
    assert result.success
    assert _samples(result) == {"web-00000-00001": 4, "web-00002-00003": 8, "web-00004-00005": 4}

    # A shard that comes later belongs to the group of its number; the other groups stay as they are.
    (tmp_path / "late").rename(late)
    result = deployment.run(assets=CURATED)
    assert result.success
    assert _samples(result) == {"web-00000-00001": 8, "web-00002-00003": 8, "web-00004-00005": 4}
    made = materialized(result)["curated_parquet"]
    assert {key for key, event in made.items() if "unchanged" not in event.metadata} == {"web-00000-00001"}

    # One that goes takes nothing with it, though another comes, and though it was alone in its group.
    shards[1].unlink()
    result = deployment.run(assets=CURATED)
    assert not result.success
    assert _samples(result) == {"web-00000-00001": 8, "web-00004-00005": 4}
    shards[3].rename(shards[3].with_name("web-00005.tar"))
    assert _samples(deployment.run(assets=CURATED)) == {"web-00000-00001": 8}
    gone = "raw shard 'web-00002' of this partition is gone: the samples published before stay "
    assert gone in deployment.log(result)
    files = pq.ParquetDataset(f"{deployment.storage}/curated").read(["sample_id"])
    assert len(files.column("sample_id").unique()) == 20


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


def test_lost_storage_is_made_again(tmp_path: Path, copied: Deployment) -> None:
    before = {p.name: p.read_bytes() for p in (tmp_path / "storage" / "webdataset").glob("*.tar")}
    shutil.rmtree(tmp_path / "storage" / "webdataset")
    shutil.rmtree(tmp_path / "storage" / "lance")
    result = copied.run()
    assert result.success
    events = materialized(result)
    assert all("unchanged" in made.metadata for made in events["filtered_parquet"].values())
    assert {p.name: p.read_bytes() for p in (tmp_path / "storage" / "webdataset").glob("*.tar")} == before
    rows = sum(b.num_rows for b in reader_for("lance", str(tmp_path / "storage" / "lance")))
    assert (
        rows
        == pq.read_table(tmp_path / "storage" / "filtered" / "p.parquet").num_rows
        + pq.read_table(tmp_path / "storage" / "filtered" / "q.parquet").num_rows
    )
