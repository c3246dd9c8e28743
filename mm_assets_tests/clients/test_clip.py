"""Measures by a CLIP model, taken by the library that they use, with a tiny model made here."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets_tests.clients.environment import ROOT, clients_bin, run
from mm_assets_tests.filters.test_filter_chain import sample
from mm_assets_tests.formats.datasets import batch_of, write
from mm_assets_tests.formats.images.pictures import picture

pytestmark = pytest.mark.clients

_SCRIPTS = Path(__file__).with_name("open_with")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``1`` and ``2``: models with random weights."""
    folder = tmp_path_factory.mktemp("models")
    run([clients_bin("python"), _SCRIPTS / "tiny_clip.py", folder, "1", "2"])
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample with a text and pictures, and one with pictures alone."""
    folder = tmp_path_factory.mktemp("source")
    pictures = [picture(number)[1] for number in range(0, 24, 2)]
    write("parquet", folder, [batch_of(sample("a", "a text", *pictures[:8]) + sample("b", *pictures[8:]))])
    return folder


@pytest.fixture(scope="module")
def measured(models: Path, source: Path) -> dict[str, Any]:
    script = [clients_bin("python"), _SCRIPTS / "clip_measures.py", models, source]
    found: dict[str, Any] = json.loads(run(script, PYTHONPATH=str(ROOT)).splitlines()[-1])
    return found


def test_values_are_those_of_the_library_in_any_batch(measured: dict[str, Any]) -> None:
    found = {name: value for name, value in measured.items() if name != "given"}
    assert found.pop("similarity off by") < 6e-5  # half of the last decimal
    assert found.pop("embedding off by") < 6e-5
    assert found.pop("spread") > 0.3  # so that the above says something
    assert found == {
        "loaded to plan": [],
        "network": [],
        "errors": {"damaged 1": "unreadable image: image file is truncated"},
        "without text": [*(f"s{n} {i}" for n in range(0, 40, 4) for i in range(1 + n % 3)), "blank 2"],
        "same images": True,
        "of many texts, no more than of all": True,
        "other order": True,
        "one sample at a time": True,
        "type": "list<element: float>",
        "read back": True,
        "taken over": True,
        "missing of the same model elsewhere": 0,
        "missing of another model": 2,
        "another model": True,
        "exchanged": "/moved: another model here than where the run was planned",
    }


def test_convert_keeps_the_images_that_fit(
    models: Path, source: Path, measured: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"PYTHONPATH": str(ROOT), "MM_CLIP_MODEL": str(models / "1")}
    scores = {(name, position): score for name, position, score in measured["given"]}
    assert [name for (name, _), score in scores.items() if score is None] == ["b"] * 4
    least = sorted(score for score in scores.values() if score is not None)[4]
    assert least > 0
    convert = [clients_bin("python"), "-m", "mm_assets.cli", "convert", source, tmp_path / "out"]
    run([*convert, "--to", "parquet", "--min-clip-similarity", str(least)], **settings)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    kept = [(row["sample_id"], row["position"]) for row in rows if row["modality"] == "image"]
    assert kept == [place for place, score in scores.items() if score is not None and score >= least]
    assert 0 < len(kept) < 8
