"""Two runs of the graph over the same raw shards write the same bytes, whether one worker does it or two."""

from __future__ import annotations

from pathlib import Path

from mm_assets_tests.graph.deployment import Deployment
from mm_assets_tests.graph.output_digests import FOLDERS, digests
from mm_assets_tests.quick_instance import quick_instance
from tools.demo import make_shards


def test_one_worker_and_two_write_the_same(tmp_path: Path) -> None:
    make_shards(tmp_path / "raw", members=2, pdf=1, samples=4)
    _cut(tmp_path / "raw" / "web-00001.tar")
    found = []
    for workers in ("1", "2"):
        storage = tmp_path / workers
        with quick_instance(tmp_path / f"home-{workers}") as instance:
            Deployment(str(tmp_path / "raw"), str(storage), instance, {"MM_WORKERS": workers}).run()
        found.append(digests(storage))
    assert {name.partition("/")[0] for name in found[0]} == {name.partition("/")[0] for name in FOLDERS}
    assert found[0] == found[1]


def _cut(shard: Path) -> None:
    """Without its end, so that there is something to set aside."""
    shard.write_bytes(shard.read_bytes()[:-3000])
