"""Registry of image measures, the only list of them."""

from __future__ import annotations

from mm_assets.filters.measures.clip import ClipEmbedding, ClipSimilarity
from mm_assets.filters.measures.entropy import Entropy
from mm_assets.filters.measures.image_measure import ImageMeasure
from mm_assets.filters.measures.perceptual_hash import PerceptualHash, PerceptualQuality
from mm_assets.filters.measures.qr_area import QrArea
from mm_assets.filters.measures.sha256 import Sha256
from mm_assets.filters.measures.sharpness import Sharpness, SharpnessAtOneSize

MEASURES: tuple[ImageMeasure, ...] = (
    Sharpness(),
    SharpnessAtOneSize(),
    QrArea(),
    Entropy(),
    Sha256(),
    PerceptualHash(),
    PerceptualQuality(),
    ClipSimilarity(),
    ClipEmbedding(),
)
"""Measures in the order of their columns."""
