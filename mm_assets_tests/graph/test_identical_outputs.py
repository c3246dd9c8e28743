"""Two runs of the graph over the same raw shards write the same bytes, whether one worker does it or two."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from mm_assets.demo.shards import make_shards
from mm_assets_tests.graph.deployment import Deployment

# Records and proofs note when a file was written; Lance names its files at random (its rows:
# cli/test_identical_outputs.py).
OUTPUTS = ("curated", "scores", "filtered", "webdataset", "arrow_cache", "quarantine")
FOLDERS = (*OUTPUTS, "ledger/balance", "ledger/items", "ledger/raw_shards")


def test_one_worker_and_two_write_the_same(tmp_path: Path) -> None:
    make_shards(tmp_path / "raw", members=2, pdf=1, samples=4)
    _cut(tmp_path / "raw" / "web-00001.tar")
    found = []
    for workers in ("1", "2"):
        storage = tmp_path / workers
        with dg.DagsterInstance.ephemeral() as instance:
            Deployment(str(tmp_path / "raw"), str(storage), instance, {"MM_WORKERS": workers}).run()
        found.append(dict(_digests(storage)))
    assert {name.partition("/")[0] for name in found[0]} == {name.partition("/")[0] for name in FOLDERS}
    assert found[0] == found[1]


def _cut(shard: Path) -> None:
    """Without its end, so that there is something to set aside."""
    shard.write_bytes(shard.read_bytes()[:-3000])


def _digests(storage: Path) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in (storage / folder).rglob("*"):
            if path.is_file():
                yield str(path.relative_to(storage)), hashlib.sha256(path.read_bytes()).hexdigest()
