"""Accounts in a bucket that were found whole cost no request each while their etags stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm_assets.storage import small_files
from mm_assets_tests.cli.commands import fine, run
from mm_assets_tests.live.faulty_proxy import faulty_proxy
from mm_assets_tests.live.s3_server import S3Server
from mm_assets_tests.warm_workers import warm_workers
from tools.demo import make_shards

pytestmark = pytest.mark.clients

SHARDS = 9
NOTHING = f"nothing to do: {SHARDS} shards up to date"


def test_a_look_asks_for_no_account_that_it_knows(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", f"{s3.new_bucket()}/out"
    make_shards(raw, members=SHARDS, pdf=0, samples=1)
    settings = {"MM_RAW_SHARDS": str(raw), "MM_STORAGE": f"s3://{out}", "MM_WORKERS": "1"}
    settings["DAGSTER_HOME"] = str(tmp_path / "home")
    with faulty_proxy(s3.endpoint) as proxy, warm_workers(apart=True):
        env = {**s3.env, "AWS_ENDPOINT_URL": proxy.endpoint, **settings}

        def look() -> int:
            proxy.reset()
            assert fine(run("run", **env)).startswith(NOTHING)
            return proxy.requests["GET"]

        fine(run("run", **env))
        first, second = look(), look()
        assert first - second >= 8 * SHARDS  # an account of each shard in each asset, and small files
        store = s3.filesystem()
        accounts = sorted(store.ls(f"{out}/ledger/accounts/filtered_parquet", detail=False))
        scores = sorted(store.ls(f"{out}/scores", detail=False))
        for path, asset in ((accounts[0], "filtered_parquet"), (scores[1], "image_scores")):
            data = store.cat_file(path)
            store.pipe_file(path, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
            stale, *_ = fine(run("run", "--dry-run", **env)).splitlines()
            assert stale.startswith(f"stale: not as it was published: 1 shard in {asset}")
            store.pipe_file(path, data)
            assert look() - second <= 3  # the same content has the same etag
        monkeypatch.setattr(small_files, "publish_bytes", _refuse)
        store.rm(f"{out}/ledger/index/accounts", recursive=True)
        assert abs(look() - first) <= 8  # of a store that may only be read all is read each time
        assert abs(look() - first) <= 8


def _refuse(*_: object) -> None:
    raise PermissionError(13, "Access Denied")
