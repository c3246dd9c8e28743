"""Registry of sample measures that are only taken if something asks for them, the only list of them."""

from __future__ import annotations

from mm_assets.filters.sample_measures.language import Language, LanguageProbability
from mm_assets.filters.sample_measures.repeated_lines import RepeatedLines
from mm_assets.filters.sample_measures.repetition import Repetition
from mm_assets.filters.sample_measures.sample_measure import SampleMeasure

MEASURES: tuple[SampleMeasure, ...] = (Language(), LanguageProbability(), Repetition(), RepeatedLines())
"""Measures in the order of their columns."""
