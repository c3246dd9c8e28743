"""The languages that settings may name are those that are told apart."""

from __future__ import annotations

from mm_assets.filters.sample_measures.language import _identifier
from mm_assets.filters.sample_measures.languages import LANGUAGES


def test_they_are_those_of_the_model() -> None:
    assert sorted(_identifier().labels) == list(LANGUAGES)
