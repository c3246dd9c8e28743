"""Extension interface: what filters, scores, checks, sources and formats of your own import (docs/guides).

Everything else inside `mm_assets` may move between releases; `mm_assets` and this module do not.
"""

from __future__ import annotations

from mm_assets.accounting.canonical import AccountedFormat, CanonicalLocation, RowPart
from mm_assets.filters import FilterSettingError, SampleFilter, maximum, minimum, setting
from mm_assets.filters.chain import ScoreFilter
from mm_assets.filters.measure import ImageContent, ImageMeasure, SampleMeasure
from mm_assets.filters.registry import AspectRatioFilter
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.formats.batching import cut_by_bytes
from mm_assets.formats.document_tars import Document, DocumentSource
from mm_assets.formats.names import DOCUMENT_OPTIONS, MEMBER_OPTIONS, Format
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import FileSource, InterleavedReader
from mm_assets.formats.reports import PartitionReport
from mm_assets.formats.writer import InterleavedWriter, Sink
from mm_assets.graph import Check, ShardCheck, WrittenShard
from mm_assets.model.errors import ShardError
from mm_assets.model.samples import InterleavedBatch, Step, StepResult, examples_of
from mm_assets.storage.files import StagedFile, StorageOptions, open_binary, remove

__all__ = [
    "DOCUMENT_OPTIONS",
    "MEMBER_OPTIONS",
    "AccountedFormat",
    "AspectRatioFilter",
    "CanonicalLocation",
    "Check",
    "Document",
    "DocumentSource",
    "FileSource",
    "FilterSettingError",
    "Format",
    "ImageContent",
    "ImageMeasure",
    "ImageScore",
    "InterleavedBatch",
    "InterleavedReader",
    "InterleavedWriter",
    "Partition",
    "PartitionReport",
    "RowPart",
    "SampleFilter",
    "SampleMeasure",
    "SampleScore",
    "ScoreFilter",
    "ShardCheck",
    "ShardError",
    "Sink",
    "StagedFile",
    "Step",
    "StepResult",
    "StorageOptions",
    "WrittenShard",
    "cut_by_bytes",
    "examples_of",
    "maximum",
    "minimum",
    "open_binary",
    "remove",
    "setting",
]
