"""What loaders are measured on: each gives the same samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import curator, project
from benchmarks.loader_reads import LOADERS
from benchmarks.measuring import measure
from benchmarks.shards import Shape, make_shards
from mm_assets_tests.clients.environment import clients_bin

pytestmark = pytest.mark.clients


def test_all_loaders_give_the_same_bytes(tmp_path: Path) -> None:
    assert clients_bin("python") == curator.PYTHON
    tars = make_shards(tmp_path, Shape("members", shards=2, samples=40, sample_bytes=20_000, images=(2, 3)))
    folder = tmp_path / "sets"
    for target in ("webdataset", "arrow_cache"):
        project.convert("webdataset", target, list(map(str, tars)), str(folder / target), is_filtered=False)
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    arguments = {"python": curator.PYTHON, "environment": environment, "folder": str(folder)}
    measure("benchmarks.loader_reads:make_others", **arguments)
    found = {
        loader: measure("benchmarks.loader_reads:prepare", loader=loader, workers=0, **arguments).result
        for loader in LOADERS
    }
    assert {result["samples"] for result in found.values()} == {40}
    assert len({result["nbytes"] for result in found.values()}) == 1
    assert found["ours"]["nbytes"] > 40 * 15_000
