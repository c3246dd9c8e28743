"""Tags, diffs and retirement with the storage on a real S3 server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from mm_assets.demo import make_shards
from mm_assets.formats.lance.location import storage_options_from_env
from mm_assets.versions.tagging import Manifest
from mm_assets_tests.cli import commands
from mm_assets_tests.graph.conftest import deploy  # noqa: F401 (a fixture)
from mm_assets_tests.graph.deployment import Deployment
from mm_assets_tests.live.s3_server import S3Server

pytestmark = pytest.mark.clients


def test_versions_on_s3(
    tmp_path: Path,
    s3: S3Server,
    deploy: Callable[..., Deployment],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    raw, bucket = s3.new_bucket(), s3.new_bucket()
    shards = make_shards(tmp_path / "raw", members=2, pdf=1)
    for shard in shards:
        s3.filesystem().put_file(str(shard), f"{raw}/in/{shard.name}")
    storage = f"s3://{bucket}/out"
    deployment = deploy(f"s3://{raw}/in/", storage)
    assert deployment.run().success
    settings = {
        **s3.env,
        "MM_RAW_SHARDS": deployment.raw,
        "MM_STORAGE": storage,
        "MM_WORKERS": "2",
        "DAGSTER_HOME": str(tmp_path / "none"),
    }
    commands.ok("tag", "v1", **settings)
    assert commands.ok("diff", "v1", **settings) == "no difference\n"
    objects = s3.filesystem().find(bucket, detail=True)
    for state in Manifest(storage, "v1").states():
        assert state.files or state.asset == "quarantine"
        assert {file.path: file.bytes for file in state.files} == {
            file.path: objects[f"{bucket}/out/{file.path}"]["size"] for file in state.files
        }
    gone = shards[0].name.removesuffix(".tar")
    s3.filesystem().rm_file(f"{raw}/in/{shards[0].name}")
    assert commands.ok("retire", **settings).startswith(f"retiring {gone}\n")
    left = [path for path in s3.filesystem().find(bucket) if gone in path and "/lance/" not in path]
    assert left == [f"{bucket}/out/ledger/retired/{gone}.json"]
    printed = commands.ok("diff", "v1", **settings).splitlines()
    dropped = {line.split("\t")[2] for line in printed if "\t" in line}
    assert {tuple(line.split("\t")[i] for i in (0, 1, 4)) for line in printed if "\t" in line} == {
        ("dropped", gone, "shard removed")
    }
    options = storage_options_from_env(s3.env)
    now, tagged = (
        set(
            lance.dataset(f"{storage}/lance/items.lance", version=version, storage_options=options)
            .to_table(["sample_id"])["sample_id"]
            .to_pylist()
        )
        for version in (None, "v1")
    )
    assert dropped and tagged - now == dropped
    kinds = [f"{storage}/{folder}" for folder in ("filtered", "webdataset", "lance", "arrow_cache")]
    assert commands.ok("verify", *kinds, **settings).splitlines()[-1] == "equal"
