"""The loader of ``mm_assets.train`` in torch: each sample once, whatever stops and resumes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mm_assets.train import InterleavedDataset, Mixture
from mm_assets_tests.clients.environment import ROOT, clients_bin, convert, run
from tools.demo import make_shards

pytestmark = pytest.mark.clients

SCRIPT = Path(__file__).with_name("open_with") / "torch_loaders.py"


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loaders")
    make_shards(root / "raw", members=4, pdf=1, samples=12)
    convert(root / "raw", root / "tars", "webdataset")
    return root / "tars"


@pytest.fixture(scope="module")
def found(tars: Path) -> dict[str, Any]:
    printed = run([clients_bin("python"), SCRIPT, tars], PYTHONPATH=str(ROOT))
    return json.loads(printed.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def truth(tars: Path) -> list[str]:
    return [sample["sample_id"] for sample in InterleavedDataset(tars, shuffle=False)]


@pytest.mark.parametrize("way", ["elastic", "plain", "stateful"])
def test_each_sample_once(way: str, found: dict[str, Any], truth: list[str]) -> None:
    assert sorted(found[way]) == sorted(truth)


def test_a_mixture_is_that_of_one_run(found: dict[str, Any], tars: Path) -> None:
    whole = Mixture([InterleavedDataset(tars, seed=seed) for seed in (1, 2)], [2, 1])
    assert Counter(found["mixture"]) == Counter(sample["sample_id"] for sample in whole)


def test_workers_live_on_for_another_order(found: dict[str, Any], truth: list[str]) -> None:
    first, second = found["two epochs"]
    assert sorted(first) == sorted(second) == sorted(truth)
    assert first != second


def test_tensors_of_pictures(found: dict[str, Any], tars: Path) -> None:
    sizes = [
        [[3, *item["image"].size[::-1]] for item in sample["items"] if item["modality"] == "image"]
        for sample in InterleavedDataset(tars, shuffle=False, decode="pil")
    ]
    assert found["shapes"] == found["shapes of workers"] == sizes


@pytest.mark.parametrize(
    "way",
    [
        "workers",
        "one after the other",
        "many waiting",
        "new workers",
        "spawned",
        "too large",
        "no memory",
    ],
)
def test_workers_give_the_batches_of_none(way: str, found: dict[str, Any], truth: list[str]) -> None:
    """Also those that a worker hands over in memory, when a loop was left meanwhile."""
    batches = found["handed over"]
    assert len(set(batches["no workers"])) == len(batches["no workers"]) == 2 * -(-len(truth) // 4)
    assert batches[way] == batches["no workers"]


def test_memory_of_workers_is_gone_with_their_loader(found: dict[str, Any]) -> None:
    assert found["handed over"]["left open"] == []


def test_a_fault_in_a_worker_reaches_the_loop(found: dict[str, Any]) -> None:
    assert "a sample of number 7" in found["refused"]


def test_a_forked_process_has_batches_of_its_own(found: dict[str, Any]) -> None:
    forked = found["forked"]
    assert forked["batches"] == forked["alone"] and forked["alone"][0] != forked["alone"][1]
    assert len(set(forked["memory"])) == 2
