"""The languages that settings may name are those that are told apart."""

from __future__ import annotations

from mm_assets.filters.measures import LANGUAGES, _identifier


def test_they_are_those_of_the_model() -> None:
    assert sorted(_identifier().labels) == list(LANGUAGES)
