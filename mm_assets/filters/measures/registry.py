"""Registry of image measures, the only list of them."""

from __future__ import annotations

from mm_assets.filters.measures.clip import ClipEmbedding, ClipSimilarity
from mm_assets.filters.measures.image_measure import ImageMeasure

MEASURES: tuple[ImageMeasure, ...] = (ClipSimilarity(), ClipEmbedding())
"""Measures in the order of their columns."""
