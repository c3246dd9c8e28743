"""The whole graph with raw shards and storage on a real S3 server: the same data as on a local disk; tags,
diffs and retirement.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from mm_assets.formats.registry import reader_for
from mm_assets.storage import storage_options_from_env
from mm_assets.versions.tagging import Manifest
from mm_assets_tests.cli import commands
from mm_assets_tests.graph.conftest import deploy  # noqa: F401 (a fixture)
from mm_assets_tests.graph.deployment import ASSETS, Deployment, failed_checks, materialized
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("shared_workers")]


def _read(kind: str, source: str) -> pa.Table:
    return _sorted([batch.data for batch in reader_for(kind, source)])


def _sorted(tables: list[pa.Table]) -> pa.Table:
    table = pa.concat_tables(tables, promote_options="default")
    return table.sort_by([("sample_id", "ascending"), ("position", "ascending"), ("modality", "ascending")])


def test_graph_and_versions_on_s3(
    tmp_path: Path,
    s3: S3Server,
    deploy: Callable[..., Deployment],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**s3.env, "MM_MIN_ASPECT_RATIO": "1.0", "MM_MAX_ASPECT_RATIO": "2.0"}.items():
        monkeypatch.setenv(name, value)
    raw, bucket = s3.new_bucket(), s3.new_bucket()
    shards = make_shards(tmp_path / "raw", members=1, pdf=1)
    for shard in shards:
        s3.filesystem().put_file(str(shard), f"{raw}/in/{shard.name}")
    # One shard on the local disk beside those in the bucket: both in one run.
    local = make_shards(tmp_path / "local", members=2, pdf=0)[1]
    for other in (tmp_path / "local").glob("*"):
        if other != local:
            other.unlink()
    storage = f"s3://{bucket}/out"
    deployment = deploy(f"s3://{raw}/in/ {local}", storage)
    result = deployment.run()
    assert result.success and failed_checks(result) == set()
    events = materialized(result)
    assert {asset: len(found) for asset, found in events.items()} == dict.fromkeys(ASSETS, 3)

    curated = _read("parquet", f"{storage}/curated")
    source = _sorted([_read("webdataset", str(shard)) for shard in [*shards, local]])
    columns = [name for name in source.column_names if name != "source_ref"]
    assert set(curated.column_names) == {*columns, "source_ref"}
    assert curated.select(columns).equals(source.select(columns))
    filtered = _read("parquet", f"{storage}/filtered")
    assert 0 < filtered.num_rows < curated.num_rows
    assert _read("lance", f"{storage}/lance").select(filtered.column_names).equals(filtered)
    assert _read("webdataset", f"{storage}/webdataset").select(filtered.column_names).equals(filtered)
    assert _read("arrow_cache", f"{storage}/arrow_cache").select(filtered.column_names).equals(filtered)

    objects = {path: info["ETag"] for path, info in s3.filesystem().find(bucket, detail=True).items()}
    again = deployment.run()
    assert again.success
    assert all(
        made.metadata["unchanged"].value for found in materialized(again).values() for made in found.values()
    )
    assert {path: info["ETag"] for path, info in s3.filesystem().find(bucket, detail=True).items()} == objects
    _tag_and_retire(s3, deployment, f"{raw}/in/{shards[0].name}", tmp_path / "none")


def _tag_and_retire(s3: S3Server, deployment: Deployment, shard: str, home: Path) -> None:
    """Tag what was made, remove a raw shard, and retire it: only what the tag keeps of it is left."""
    storage, bucket = deployment.storage, deployment.storage.split("/")[2]
    settings: Mapping[str, str] = {
        **s3.env,
        **deployment.environment,
        "MM_RAW_SHARDS": deployment.raw,
        "MM_STORAGE": storage,
        "MM_MIN_ASPECT_RATIO": "1.0",
        "MM_MAX_ASPECT_RATIO": "2.0",
        "DAGSTER_HOME": str(home),
    }
    commands.ok("tag", "v1", **settings)
    assert commands.ok("diff", "v1", **settings) == "no difference\n"
    objects = s3.filesystem().find(bucket, detail=True)
    for state in Manifest(storage, "v1").states():
        assert state.files or state.asset == "quarantine"
        assert {file.path: file.bytes for file in state.files} == {
            file.path: objects[f"{bucket}/out/{file.path}"]["size"] for file in state.files
        }
    gone = Path(shard).stem
    s3.filesystem().rm_file(shard)
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
