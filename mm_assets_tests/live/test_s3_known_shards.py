"""A new shard costs as many requests to a store that has many shards as to one that has few."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import run
from mm_assets_tests.live.faulty_proxy import faulty_proxy
from mm_assets_tests.live.s3_server import S3Server
from mm_assets_tests.warm_workers import warm_workers
from tools.demo import make_shards

pytestmark = pytest.mark.clients

FEW, MANY = 2, 12


COMMANDS = {
    "convert": ("convert", "RAW", "OUT", "--to", "lance", "--workers", "1"),
    "run": ("run", "--missing"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_new_shard_costs_the_same_among_many(s3: S3Server, tmp_path: Path, command: str) -> None:
    made, raw = tmp_path / "made", tmp_path / "raw"
    made.mkdir()
    raw.mkdir()
    make_shards(made, members=MANY + 1, pdf=0, samples=1)
    shards = sorted(made.iterdir())
    out = f"s3://{s3.new_bucket()}/out"
    words = [{"RAW": raw, "OUT": out}.get(word, word) for word in COMMANDS[command]]

    def add(first: int, after: int) -> Counter[str]:
        for shard in shards[first:after]:
            shard.rename(raw / shard.name)
        proxy.reset()
        done = run(*words, **env)
        assert done.returncode == 0, done.stderr
        if command == "convert":  # it would look at shards that it has converted
            for shard in shards[first:after]:
                (raw / shard.name).unlink()
        return proxy.requests

    with faulty_proxy(s3.endpoint) as proxy, warm_workers(apart=True):
        graph = {"MM_RAW_SHARDS": str(raw), "MM_STORAGE": out, "MM_WORKERS": "1"}
        graph["DAGSTER_HOME"] = str(tmp_path / "home")
        env = {**s3.env, "AWS_ENDPOINT_URL": proxy.endpoint, **(graph if command == "run" else {})}
        add(0, FEW)
        among_few = add(FEW, FEW + 1)
        add(FEW + 1, MANY)
        among_many = add(MANY, MANY + 1)
    assert among_few["PUT"] and among_few.keys() == among_many.keys()
    # Segments of an index are merged now and then; a record more for each shard would be ten requests.
    assert all(among_many[kind] <= among_few[kind] + 5 for kind in among_few), (among_few, among_many)
