"""Measures by a CLIP model, taken by the library that they use, with a tiny model made here."""

import json
from pathlib import Path

import pytest

from mm_assets_tests.clients.environment import ROOT, clients_bin, run

pytestmark = pytest.mark.clients

_SCRIPTS = Path(__file__).with_name("open_with")


def model(folder: Path, seed: int) -> Path:
    """A model with random weights."""
    run([clients_bin("python"), _SCRIPTS / "tiny_clip.py", folder, str(seed)])
    return folder


def test_values_are_those_of_the_library_in_any_batch(tmp_path: Path) -> None:
    model(tmp_path / "one", 1)
    model(tmp_path / "two", 2)
    script = [clients_bin("python"), _SCRIPTS / "clip_measures.py", tmp_path]
    found = json.loads(run(script, PYTHONPATH=str(ROOT)).splitlines()[-1])
    # Half of the last decimal, and a pixel in a hundred that Pillow rounds another way.
    assert found.pop("similarity off by") < 3e-4
    assert found.pop("embedding off by") < 3e-3
    assert found.pop("spread") > 0.3
    assert [*found.pop("errors")] == ["damaged 1"]
    assert found == {}
