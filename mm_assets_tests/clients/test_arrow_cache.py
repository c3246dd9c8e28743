"""The Arrow cache beside Hugging Face datasets, and in torch's DataLoader."""

import json
from pathlib import Path

import pytest

from mm_assets_tests.clients.environment import ROOT, clients_bin, run

pytestmark = pytest.mark.clients


def test_examples_and_features_as_in_datasets(tmp_path: Path) -> None:
    script = Path(__file__).with_name("open_with") / "arrow_cache_beside_datasets.py"
    found = json.loads(run([clients_bin("python"), script, tmp_path], PYTHONPATH=str(ROOT)).splitlines()[-1])
    assert found.pop("shards") > 3
    assert found == {
        "rows of both": 60,
        "our reader finds what theirs does": True,
        "our shards in datasets": True,
        "our shards streamed": True,
        "DataLoader": {"fork": True, "spawn": True},
    }
