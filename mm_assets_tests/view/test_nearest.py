"""The nearest of a stream, whatever the parts in which it comes."""

from __future__ import annotations

import numpy as np
import pytest

from mm_assets.view.preview_study import Nearest


@pytest.mark.parametrize("parts", [1, 3, 100])
def test_the_nearest_are_kept_in_order(parts: int) -> None:
    distances = np.random.default_rng(1).permutation(1000).astype(float)
    distances[distances > 900] = np.inf
    found: Nearest[float] = Nearest(5)
    for part in np.array_split(distances, parts):
        found.add(part, part.tolist().__getitem__)
    assert found.things == [0, 1, 2, 3, 4]


def test_of_the_same_distance_some_are_drawn_by_lot() -> None:
    found: Nearest[int] = Nearest(400)
    for start in range(0, 4000, 100):
        found.add(np.zeros(100), range(start, start + 100).__getitem__)
    drawn = found.things
    assert len(set(drawn)) == 400
    assert 1700 < np.mean(drawn) < 2300


def test_what_is_infinitely_far_is_not_kept() -> None:
    found: Nearest[int] = Nearest(3)
    found.add(np.array([np.inf, 2.0, np.inf]), [10, 11, 12].__getitem__)
    assert found.things == [11]
