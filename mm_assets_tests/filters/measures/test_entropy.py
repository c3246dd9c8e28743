"""Entropy of the luma, in bits."""

from __future__ import annotations

import numpy as np
import pytest

from mm_assets.filters import measures
from mm_assets.filters.measures import Entropy
from mm_assets_tests.filters.measures.contents import content_of, scene


@pytest.mark.parametrize("levels", [1, 2, 16, 256])
def test_as_many_bits_as_levels_need(levels: int) -> None:
    grey = np.arange(levels, dtype=np.uint8).repeat(8).reshape(8, levels)
    value = Entropy().measure(content_of(grey))
    assert value == np.log2(levels)
    assert str(value)[0] != "-"


def test_a_quarter_and_three_quarters() -> None:
    grey = np.array([[0, 9, 9, 9]], np.uint8)
    assert Entropy().measure(content_of(grey)) == pytest.approx(0.811278124459)


def test_strips_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    image = content_of(scene(37, 50))
    expected = Entropy().measure(image)
    for pixels in (1, 50, 120, 36 * 50):
        monkeypatch.setattr(measures, "_STRIP", pixels)
        assert Entropy().measure(image) == expected
