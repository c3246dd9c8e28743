"""Raw shards that are absent, contend for a name or lie out of reach, in the graph: good shards do not wait
for them.
"""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from mm_assets_tests.graph.deployment import (
    ASSETS,
    CURATED,
    Deployment,
    failed_checks,
    failed_shard_checks,
    materialized,
    write_tar,
)
from tools.demo import make_shards

Deploy = Callable[..., Deployment]


def landed(result: dg.ExecuteInProcessResult) -> dict[str, list[str]]:
    return {asset: sorted(shards) for asset, shards in materialized(result).items()}


@pytest.mark.parametrize("was_there", [False, True])
def test_a_shard_that_is_not_there_fails_alone(tmp_path: Path, deploy: Deploy, was_there: bool) -> None:
    raw = tmp_path / "raw"
    make_shards(raw, members=3, pdf=0, samples=2)
    deployment = deploy(raw=f"{raw}/web-{{00000..00002}}.tar")
    assets, made = (None, ASSETS) if was_there else (CURATED, ["curated_parquet"])
    if was_there:
        assert deployment.run().success
    (raw / "web-00001.tar").rename(tmp_path / "aside")
    outputs = {
        path: path.read_bytes()
        for path in (tmp_path / "storage").rglob("web-00001.*")
        if path.suffix in (".parquet", ".tar")
    }
    result = deployment.run(assets=assets)
    assert not result.success
    assert landed(result) == {key: ["web-00000", "web-00002"] for key in made}
    assert {key for _, check, key in failed_shard_checks(result)} == {"web-00001"}
    assert (
        f"shard 'web-00001' of curated_parquet: {raw}/web-00001.tar: no such file or folder"
        in deployment.log(result)
    )
    assert bool(outputs) == was_there and all(path.read_bytes() == data for path, data in outputs.items())
    (tmp_path / "aside").rename(raw / "web-00001.tar")
    again = deployment.run(assets=assets)
    assert again.success
    assert landed(again) == {key: ["web-00000", "web-00001", "web-00002"] for key in made}


def test_a_folder_that_is_gone_fails_its_own_shards_and_is_told(tmp_path: Path, deploy: Deploy) -> None:
    make_shards(tmp_path / "a", members=1, pdf=0, samples=2)
    make_shards(tmp_path / "b", members=0, pdf=1, samples=2)
    deployment = deploy(raw=f"{tmp_path}/a {tmp_path}/b/*.tar")
    assert deployment.run().success
    shutil.rmtree(tmp_path / "b")
    result = deployment.run()
    assert not result.success
    assert landed(result) == {key: ["a/web-00000"] for key in ASSETS}
    told = deployment.log(result)
    assert f"{tmp_path}/b/*.tar: no such file" in told.splitlines()
    assert (
        "shard 'b/pdf-00000' of curated_parquet: input missing: shard 'b/pdf-00000' of raw_shards: "
        "no such raw shard" in told
    )
    assert (tmp_path / "storage" / "curated" / "b%2Fpdf-00000.parquet").exists()


def test_two_files_of_one_name_fail_that_partition_alone(tmp_path: Path, deploy: Deploy) -> None:
    raw = tmp_path / "raw"
    make_shards(raw, members=2, pdf=0, samples=2)
    deployment = deploy()
    assert deployment.run().success
    (raw / "web-00000.tar.gz").write_bytes(gzip.compress((raw / "web-00000.tar").read_bytes()))
    result = deployment.run()
    assert not result.success
    assert landed(result) == {key: ["web-00001"] for key in ASSETS}
    message = (
        f"2 files would become partition 'web-00000', rename all but one: {raw}/web-00000.tar, {raw}/"
        f"web-00000.tar.gz"
    )
    assert message in deployment.log(result)
    alone = deployment.check("raw_shards", "integrity")
    assert failed_checks(alone) == {
        ("raw_shards", "integrity", "web-00000"),
        ("raw_shards", "integrity", None),
    }
    (raw / "web-00000.tar").unlink()
    assert deployment.run(assets=CURATED).success


def test_records_are_closed_once(tmp_path: Path, deploy: Deploy) -> None:
    sound = {"s.json": b'{"texts": ["x"], "images": [null]}'}
    write_tar(tmp_path / "raw" / "x.tar", {**sound, "bad.json": b"{nope"})
    deployment = deploy()
    to_quarantine = [*CURATED, "quarantine"]
    closed = [materialized(deployment.run(assets=to_quarantine))["quarantine"]["x"].metadata["closed"].value]
    write_tar(tmp_path / "raw" / "x.tar", sound)
    for _ in range(2):
        made = materialized(deployment.run(assets=to_quarantine))["quarantine"]["x"].metadata
        closed.append(made["closed"].value)
    assert "unchanged" in made
    assert closed == [0, 1, 0]


def test_a_special_file_fails_alone_and_what_is_not_read_is_told(tmp_path: Path, deploy: Deploy) -> None:
    raw = tmp_path / "raw"
    make_shards(raw, members=1, pdf=0, samples=2)
    make_shards(tmp_path / "elsewhere", members=0, pdf=1, samples=2)
    (raw / "link").symlink_to(tmp_path / "elsewhere")
    (raw / "storage").symlink_to(tmp_path / "storage")
    (raw / "self").symlink_to(raw)
    (raw / "packed.tar.xz").write_bytes(b"x")
    os.mkfifo(raw / "pipe.tar")
    (raw / "zero.tar").symlink_to("/dev/zero")
    (raw / "folder.tar").mkdir()
    deployment = deploy(raw=f"file://{raw}", storage=f"file://{tmp_path}/storage")
    for assets in (None, CURATED):  # the second has outputs behind the link
        result = deployment.run(assets=assets)
        assert not result.success
        made = ASSETS if assets is None else ["curated_parquet"]
        assert landed(result) == {key: ["link/pdf-00000", "web-00000"] for key in made}
        told = deployment.log(result)
        assert f"shard 'pipe' of curated_parquet: {raw}/pipe.tar: a named pipe, not a regular file" in told
        assert f"shard 'zero' of curated_parquet: {raw}/zero.tar: a device, not a regular file" in told
        assert f"shard 'folder' of curated_parquet: {raw}/folder.tar: a folder, not a file" in told
        assert (
            f"{raw}/packed.tar.xz: a tar packed in a way that is not read: pack with gzip, or not at all"
            in told.splitlines()
        )
        assert f"{raw}/self: a link to a folder above it, not followed" in told.splitlines()
    assert {"curated", "webdataset", "lance"} <= set(os.listdir(tmp_path / "storage"))


@pytest.mark.parametrize("storage", ["memory://out", "simplecache::memory://out"])
def test_a_storage_that_ends_with_the_process_is_refused(
    tmp_path: Path, deploy: Deploy, storage: str
) -> None:
    make_shards(tmp_path / "raw", members=1, pdf=0, samples=1)
    with pytest.raises(ValueError, match=f"^{storage}: "):
        deploy(storage=storage).run()
