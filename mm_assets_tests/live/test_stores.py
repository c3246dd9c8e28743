"""Raw shards in one store and storage in another in one run: each has its own endpoint and credentials."""

import json
from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import only_line, run
from mm_assets_tests.live.s3_server import REGION, S3Server, s3_server
from tools.demo import make_shards

pytestmark = pytest.mark.clients


def _options(server: S3Server) -> str:
    options = {
        "endpoint_url": server.endpoint,
        "aws_access_key_id": server.key,
        "aws_secret_access_key": server.secret,
        "region_name": REGION,
    }
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())


def test_two_stores_with_two_credentials(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = make_shards(tmp_path / "raw", members=2, pdf=0)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mm_assets.toml"
    with s3_server() as other:
        raw, out = s3.new_bucket(), other.new_bucket()
        for shard in shards:
            s3.filesystem().put_file(str(shard), f"{raw}/{shard.name}")
        file.write_text(f'[stores."s3://{raw}"]\n{_options(s3)}\n[stores."s3://{out}"]\n{_options(other)}\n')
        settings = {"MM_RAW_SHARDS": f"s3://{raw}/", "MM_STORAGE": f"s3://{out}/storage", "MM_WORKERS": "1"}
        done = run("run", **settings)
        assert done.returncode == 0, done
        found = {path.split("/")[2] for path in other.filesystem().find(f"{out}/storage")}
        assert {"curated", "filtered", "webdataset", "lance", "arrow_cache", "ledger", "proof"} <= found
        assert "proven: every item of 2 shards is in 5 outputs" in done.stdout

        # With the credentials of the other one, the store refuses, and the line names the place.
        file.write_text(
            f'[stores."s3://{raw}"]\n{_options(other).replace(other.endpoint, s3.endpoint)}\n'
            f'[stores."s3://{out}"]\n{_options(other)}\n'
        )
        assert only_line(run("run", **settings)) == (
            f"no raw shards: s3://{raw}/: the secret is not that of the key: "
            "see AWS_SECRET_ACCESS_KEY, or [stores] in the settings file"
        )
