"""What loaders are measured on: each gives the same samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import curator, project
from benchmarks.loader_reads import LOADERS
from benchmarks.shards import Shape, make_shards
from mm_assets_tests.clients.environment import ROOT, clients_bin, run

pytestmark = pytest.mark.clients


# In one process: some import for seconds.
_CODE = """
import json, sys
from benchmarks.loader_reads import LOADERS, make_others, prepare
make_others(sys.argv[1])()
print(json.dumps({loader: prepare(loader, sys.argv[1], 0)() for loader in LOADERS}))
"""


def test_all_loaders_give_the_same_bytes(tmp_path: Path) -> None:
    assert clients_bin("python") == curator.PYTHON
    tars = make_shards(tmp_path, Shape("members", shards=2, samples=40, sample_bytes=20_000, images=(2, 3)))
    folder = tmp_path / "sets"
    for target in ("webdataset", "arrow_cache"):
        project.convert("webdataset", target, list(map(str, tars)), str(folder / target), is_filtered=False)
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    found = json.loads(run([clients_bin("python"), "-c", _CODE, folder], **environment).splitlines()[-1])
    assert found.keys() == LOADERS.keys()
    assert {result["samples"] for result in found.values()} == {40}
    assert len({result["nbytes"] for result in found.values()}) == 1
    assert found["ours"]["nbytes"] > 40 * 15_000
