"""The data model of interleaved documents, and (lazily) the readers and writers of its three formats."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.errors import MmAssetsError
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

# One import for users; loaded on first use so that this room itself depends on no format.
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
