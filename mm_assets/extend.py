"""Extension interface: what filters, scores, checks and formats of your own import (docs/guides).

Everything else inside `mm_assets` may move between releases; `mm_assets` and this module do not.
"""

from __future__ import annotations

from mm_assets.accounting.canonical.account import AccountedFormat
from mm_assets.filters.chain import SampleFilter, ScoreFilter
from mm_assets.filters.filter import FilterSettingError, maximum, minimum, setting
from mm_assets.filters.measure import ImageContent, ImageMeasure, SampleMeasure
from mm_assets.filters.registry import AspectRatioFilter
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.formats.names import DOCUMENT_OPTIONS, MEMBER_OPTIONS, Format
from mm_assets.graph.messages import Check, ShardCheck, WrittenShard
from mm_assets.model.samples import InterleavedBatch, Step, StepResult, examples_of

__all__ = [
    "DOCUMENT_OPTIONS",
    "MEMBER_OPTIONS",
    "AccountedFormat",
    "AspectRatioFilter",
    "Check",
    "FilterSettingError",
    "Format",
    "ImageContent",
    "ImageMeasure",
    "ImageScore",
    "InterleavedBatch",
    "SampleFilter",
    "SampleMeasure",
    "SampleScore",
    "ScoreFilter",
    "ShardCheck",
    "Step",
    "StepResult",
    "WrittenShard",
    "examples_of",
    "maximum",
    "minimum",
    "setting",
]
