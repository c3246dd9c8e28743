"""What a sample that differs has lost, as far as it is why."""

from __future__ import annotations

import pytest

from mm_assets.versions.diff import ADDED, CHANGED, DROPPED, Loss, _loss_reasons

ITEM: Loss = (4, "filtered", "aspect_ratio")
SAME_ITEM: Loss = (4, "filtered", "sharpness")
OTHER_ITEM: Loss = (5, "filtered", "sharpness")
WHOLE: Loss = (-1, "filtered", "words")
BY_SHARPNESS = "filtered by sharpness"
FLAG: Loss = (4, "flagged", "entropy")


@pytest.mark.parametrize(
    ("change", "before", "after", "told"),
    [
        (DROPPED, {ITEM}, {WHOLE}, ["filtered by words"]),
        (DROPPED, {ITEM}, {SAME_ITEM}, ["position 4 filtered by sharpness"]),
        (DROPPED, {ITEM}, set(), []),
        (ADDED, {WHOLE}, {ITEM}, ["no longer filtered by words"]),
        (ADDED, set(), {ITEM}, []),
        (
            CHANGED,
            {ITEM},
            {OTHER_ITEM},
            [f"position 5 {BY_SHARPNESS}", "position 4 no longer filtered by aspect_ratio"],
        ),
        (CHANGED, {ITEM}, {SAME_ITEM, OTHER_ITEM}, ["position 5 filtered by sharpness"]),
        (CHANGED, {ITEM}, {ITEM, FLAG}, ["position 4 flagged by entropy"]),
    ],
)
def test_only_what_changes_a_sample_is_told(
    change: str, before: set[Loss], after: set[Loss], told: list[str]
) -> None:
    assert [text for _, text in _loss_reasons(change, frozenset(before), frozenset(after))] == told
