"""Raw shards in one store and storage in another in one run: each has its own endpoint and credentials."""

import json
import os
from pathlib import Path

import pytest

from mm_assets.demo import make_shards
from mm_assets_tests.live.headless_process import start, told_by
from mm_assets_tests.live.s3_server import REGION, S3Server, s3_server

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
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    shards = make_shards(tmp_path / "raw", members=2, pdf=0)
    home = tmp_path / "home"
    home.mkdir()
    with s3_server() as other:
        raw, out = s3.new_bucket(), other.new_bucket()
        for shard in shards:
            s3.filesystem().put_file(str(shard), f"{raw}/{shard.name}")
        (home / "mm_assets.toml").write_text(
            f'[stores."s3://{raw}"]\n{_options(s3)}\n[stores."s3://{out}"]\n{_options(other)}\n'
        )
        process = start(f"s3://{raw}/", f"s3://{out}/storage", home)
        assert process.wait(timeout=240) == 0, told_by(home)
        found = {path.split("/")[2] for path in other.filesystem().find(f"{out}/storage")}
        assert {"curated", "filtered", "webdataset", "lance", "arrow_cache", "ledger", "proof"} <= found
        assert any("proven: every item of 2 shards is in 5 outputs" in line for line in told_by(home))

        # With the credentials of the other one, the store refuses, and the line names the place.
        (home / "mm_assets.toml").write_text(
            f'[stores."s3://{raw}"]\n{_options(other).replace(other.endpoint, s3.endpoint)}\n'
            f'[stores."s3://{out}"]\n{_options(other)}\n'
        )
        assert start(f"s3://{raw}/", f"s3://{out}/storage", home).wait(timeout=240) == 1
        assert told_by(home) == [
            f"mm-assets: no raw shards: s3://{raw}/: the secret is not that of the key: "
            "see AWS_SECRET_ACCESS_KEY, or [stores] in the settings file"
        ]
