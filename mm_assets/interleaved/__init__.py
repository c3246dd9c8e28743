"""Data model of interleaved image-text documents, and lazy access to the readers and writers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.errors import DataError, MmAssetsError
from mm_assets.interleaved.policies import MaterializeError
from mm_assets.interleaved.schema import (
    INTERLEAVED_SCHEMA,
    RESERVED_COLUMNS,
    SchemaMismatch,
    align_table,
    reconcile_schema,
    resolve_schema,
)
from mm_assets.interleaved.source_ref import build_source_ref, parse_source_ref

if TYPE_CHECKING:
    from mm_assets.formats.lance.reader import InterleavedLanceReader
    from mm_assets.formats.lance.writer import InterleavedLanceWriter
    from mm_assets.formats.materialize import materialize
    from mm_assets.formats.parquet import InterleavedParquetReader, InterleavedParquetWriter
    from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader
    from mm_assets.formats.webdataset.writer import InterleavedWebdatasetWriter

# Users import everything from here. Loading on first use keeps this package independent of the formats.
_LAZY = {
    "materialize": "mm_assets.formats.materialize",
    "InterleavedParquetReader": "mm_assets.formats.parquet",
    "InterleavedParquetWriter": "mm_assets.formats.parquet",
    "InterleavedWebdatasetReader": "mm_assets.formats.webdataset.reader",
    "InterleavedWebdatasetWriter": "mm_assets.formats.webdataset.writer",
    "InterleavedLanceReader": "mm_assets.formats.lance.reader",
    "InterleavedLanceWriter": "mm_assets.formats.lance.writer",
}

__all__ = [
    "INTERLEAVED_SCHEMA",
    "RESERVED_COLUMNS",
    "DataError",
    "InterleavedBatch",
    "InterleavedLanceReader",
    "InterleavedLanceWriter",
    "InterleavedParquetReader",
    "InterleavedParquetWriter",
    "InterleavedWebdatasetReader",
    "InterleavedWebdatasetWriter",
    "MaterializeError",
    "MmAssetsError",
    "SchemaMismatch",
    "align_table",
    "build_source_ref",
    "materialize",
    "parse_source_ref",
    "reconcile_schema",
    "resolve_schema",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
