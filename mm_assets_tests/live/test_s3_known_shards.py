"""A new shard costs as many requests to a store that has many shards as to one that has few."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mm_assets.demo.shards import make_shards
from mm_assets_tests.cli.commands import run_process
from mm_assets_tests.live.faulty_proxy import faulty_proxy
from mm_assets_tests.live.s3_server import S3Server

pytestmark = pytest.mark.clients

FEW, MANY = 2, 12


@pytest.mark.parametrize("target", ["lance", "parquet"])
def test_a_new_shard_costs_the_same_among_many(s3: S3Server, tmp_path: Path, target: str) -> None:
    raw, some = tmp_path / "raw", tmp_path / "some"
    raw.mkdir()
    make_shards(raw, members=MANY + 1, pdf=0, samples=1)
    shards = sorted(raw.iterdir())
    out = f"s3://{s3.new_bucket()}/out"

    def convert(first: int, after: int) -> Counter[str]:
        some.mkdir()
        for shard in shards[first:after]:
            shard.rename(some / shard.name)
        proxy.reset()
        run_process("convert", some, out, "--to", target, "--workers", "1", env=env)
        for shard in shards[first:after]:
            (some / shard.name).unlink()
        some.rmdir()
        return proxy.requests

    with faulty_proxy(s3.endpoint) as proxy:
        env = {**s3.env, "AWS_ENDPOINT_URL": proxy.endpoint}
        convert(0, FEW)
        among_few = convert(FEW, FEW + 1)
        convert(FEW + 1, MANY)
        among_many = convert(MANY, MANY + 1)
    assert among_few["PUT"] and among_few.keys() == among_many.keys()
    # Segments of an index are merged now and then; a record more for each shard would be ten requests.
    assert all(among_many[kind] <= among_few[kind] + 5 for kind in among_few), (among_few, among_many)
