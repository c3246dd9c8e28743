"""Filters where neither settings nor plugins are known, as in a worker on another machine."""

from __future__ import annotations

import pickle

import pytest

from mm_assets.filters import RowKeys
from mm_assets.filters.chain import FilterChain, ItemRefusals
from mm_assets.filters.condition import ImageCondition
from mm_assets.filters.registry import chain_of
from mm_assets.filters.scores import ImageScore, SampleScores
from mm_assets.settings_file import PLUGINS, PluginError, load_plugins
from mm_assets.view.preview_scores import FilterObserver
from mm_assets_tests.graph import counting_measures
from mm_assets_tests.graph.counting_measures import BrightnessFilter


def test_conditions_and_observers_ask_no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLUGINS, counting_measures.__name__)
    chain = chain_of([ImageCondition("brightness > 100 and width > 2"), BrightnessFilter(50.0)])
    packed = pickle.dumps(chain)
    monkeypatch.setenv(PLUGINS, "no.such.module")
    with pytest.raises(PluginError):
        load_plugins()

    arrived = pickle.loads(packed)  # noqa: S301  (made above)
    assert isinstance(arrived, FilterChain)
    looked_at: list[FilterChain] = [arrived, *(alone for _, alone in FilterObserver(arrived).alone)]
    assert [dropped(chain) for chain in looked_at] == [
        {0: "keep_images", 1: "keep_images"},
        {0: "keep_images", 1: "keep_images"},
        {0: "brightness"},
    ]


def dropped(chain: FilterChain) -> dict[int, str]:
    """The filter that drops an image, of three of different brightness."""
    scores = {
        row: ImageScore(10, 10, "png", 1, 100, None, {"brightness": brightness})
        for row, brightness in enumerate((20.0, 80.0, 120.0))
    }
    row = {"sample_id": "a", "modality": "image", "materialize_error": None}
    row_keys = RowKeys([{**row, "position": position} for position in scores])
    decisions = chain.decide(row_keys, ItemRefusals(scores), no_samples)
    return {row: refusal.filter.name for row, refusal in decisions.refusals.items()}


def no_samples() -> SampleScores:
    raise AssertionError("there is no filter of samples")
