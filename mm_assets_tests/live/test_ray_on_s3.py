"""The whole graph on two Ray nodes with everything in a real S3 store, while one node is killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm_assets.formats.lance.reader_writer import lance_options
from mm_assets.formats.lance.table import LanceTable
from mm_assets_tests.cli.commands import run
from mm_assets_tests.graph.output_digests import digests
from mm_assets_tests.live.daemon import wait_for
from mm_assets_tests.live.headless_process import start
from mm_assets_tests.live.ray_nodes import RayNodes, ray_nodes
from mm_assets_tests.live.s3_server import S3Server
from tools.demo import make_shards

pytestmark = [pytest.mark.live, pytest.mark.clients]


@pytest.fixture
def nodes(s3: S3Server) -> Iterator[RayNodes]:
    with ray_nodes(s3.env) as started:
        yield started


def test_outputs_in_a_bucket_are_those_of_local_workers(
    s3: S3Server, nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    store, bucket = s3.filesystem(), s3.new_bucket()
    for shard in make_shards(tmp_path / "raw", members=3, pdf=1, samples=2):
        store.put_file(str(shard), f"{bucket}/raw/{shard.name}")
    raw = f"s3://{bucket}/raw/"
    settings = {"MM_RAW_SHARDS": raw, "MM_STORAGE": f"s3://{bucket}/local", "MM_WORKERS": "1"}
    assert run("run", DAGSTER_HOME=str(tmp_path / "home"), **s3.env, **settings).returncode == 0
    process = start(raw, f"s3://{bucket}/ray", tmp_path / "ray-home", **nodes.settings)
    wait_for(nodes.other_is_at_work, 120, "a task on the second node")
    nodes.kill_other()
    assert process.wait() == 0
    found, rows = [], []
    for name in ("local", "ray"):
        store.get(f"{bucket}/{name}/", str(tmp_path / name), recursive=True)
        # In a bucket, shards of an Arrow cache have random names, which its metadata states.
        found.append(
            {
                re.sub(r"-[0-9a-f]{12}\.arrow$", ".arrow", path): digest
                for path, digest in digests(tmp_path / name).items()
                if not path.endswith("/_metadata.json")
            }
        )
        uri = f"s3://{bucket}/{name}/lance/items.lance"
        table = LanceTable(uri, lance_options(uri, None))
        rows.append({key: (facts.rows, facts.digest) for key, facts in table.partitions().items()})
    assert found[0] == found[1]
    assert len(found[0]) > 20
    assert rows[0] == rows[1] and len(rows[0]) == 4
