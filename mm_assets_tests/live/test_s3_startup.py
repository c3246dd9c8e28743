"""Commands on a store start as quickly as on local files."""

from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import imports_of
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("command", ["convert", "run"])
def test_a_command_forks_workers_that_have_the_client_of_the_store(
    s3: S3Server, tmp_path: Path, command: str
) -> None:
    """The command itself has threads of it by then, and cannot be forked."""
    shards = make_shards(tmp_path / "raw", members=2, pdf=0, samples=1)
    bucket = s3.new_bucket()
    for shard in shards:
        s3.filesystem().put_file(str(shard), f"{bucket}/raw/{shard.name}")
    raw = f"s3://{bucket}/raw/*.tar"
    arguments = ["convert", raw, f"s3://{bucket}/out", "--to", "parquet", "--workers", 2]
    settings = {"MM_RAW_SHARDS": raw, "MM_STORAGE": f"s3://{bucket}/storage", "MM_WORKERS": "2"}
    imported = imports_of(
        *(arguments if command == "convert" else ["run"]),
        **settings,
        **s3.env,
        DAGSTER_HOME=str(tmp_path / "home"),
    )
    assert [imported.count(name) for name in ("pyarrow.lib", "s3fs.core", "aiobotocore.client")] == [1, 1, 1]
