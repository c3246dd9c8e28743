"""Curated, filtered, training-ready interleaved image-text datasets, every item accounted for.

All public names are imported from here: ``from mm_assets import InterleavedParquetReader``. Each is loaded
when it is first used, so that ``import mm_assets`` loads no library. `MODULES` has the module of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Written by `make public-names`:

if TYPE_CHECKING:
    from mm_assets.dataset import Dataset as Dataset
    from mm_assets.dataset import PartitionsFailed as PartitionsFailed
    from mm_assets.dataset import read as read
    from mm_assets.formats.arrow_cache import ShardedCacheMeta as ShardedCacheMeta
    from mm_assets.formats.arrow_cache import read_sharded_cache_meta as read_sharded_cache_meta
    from mm_assets.formats.arrow_cache import validate_sharded_cache as validate_sharded_cache
    from mm_assets.formats.arrow_cache.build import write_sharded_arrow_cache as write_sharded_arrow_cache
    from mm_assets.formats.arrow_cache.features import Array3D as Array3D
    from mm_assets.formats.arrow_cache.features import ClassLabel as ClassLabel
    from mm_assets.formats.arrow_cache.features import Features as Features
    from mm_assets.formats.arrow_cache.features import Image as Image
    from mm_assets.formats.arrow_cache.features import Sequence as Sequence
    from mm_assets.formats.arrow_cache.features import Value as Value
    from mm_assets.formats.arrow_cache.features import Video as Video
    from mm_assets.formats.arrow_cache.features import cache_fingerprint as cache_fingerprint
    from mm_assets.formats.arrow_cache.features import decode_example as decode_example
    from mm_assets.formats.arrow_cache.features import encode_example as encode_example
    from mm_assets.formats.arrow_cache.reader_writer import ArrowCache as ArrowCache
    from mm_assets.formats.arrow_cache.reader_writer import (
        InterleavedArrowCacheReader as InterleavedArrowCacheReader,
    )
    from mm_assets.formats.arrow_cache.reader_writer import (
        InterleavedArrowCacheWriter as InterleavedArrowCacheWriter,
    )
    from mm_assets.formats.arrow_cache.reader_writer import InterleavedArrowDataset as InterleavedArrowDataset
    from mm_assets.formats.arrow_cache.reader_writer import read_shard as read_shard
    from mm_assets.formats.document_tars import Document as Document
    from mm_assets.formats.document_tars import DocumentSource as DocumentSource
    from mm_assets.formats.document_tars import documents as documents
    from mm_assets.formats.jsonl import InterleavedJsonlReader as InterleavedJsonlReader
    from mm_assets.formats.jsonl import InterleavedJsonlWriter as InterleavedJsonlWriter
    from mm_assets.formats.lance.reader_writer import InterleavedLanceReader as InterleavedLanceReader
    from mm_assets.formats.lance.reader_writer import InterleavedLanceWriter as InterleavedLanceWriter
    from mm_assets.formats.materialize import materialize as materialize
    from mm_assets.formats.mds import InterleavedMdsReader as InterleavedMdsReader
    from mm_assets.formats.mds import InterleavedMdsWriter as InterleavedMdsWriter
    from mm_assets.formats.paired.dataset import MultiModalWebDataset as MultiModalWebDataset
    from mm_assets.formats.paired.dataset import PairedTarExpander as PairedTarExpander
    from mm_assets.formats.paired.joined_tars import PairedShardList as PairedShardList
    from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader as InterleavedParquetReader
    from mm_assets.formats.parquet.reader_writer import InterleavedParquetWriter as InterleavedParquetWriter
    from mm_assets.formats.reader import InterleavedReader as InterleavedReader
    from mm_assets.formats.reports import PartitionReport as PartitionReport
    from mm_assets.formats.reports import WriteReport as WriteReport
    from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader as InterleavedWebdatasetReader
    from mm_assets.formats.webdataset.writer import InterleavedWebdatasetWriter as InterleavedWebdatasetWriter
    from mm_assets.formats.writer import InterleavedWriter as InterleavedWriter
    from mm_assets.formats.writer import Sink as Sink
    from mm_assets.model.errors import DataError as DataError
    from mm_assets.model.errors import MissingExtra as MissingExtra
    from mm_assets.model.errors import MmAssetsError as MmAssetsError
    from mm_assets.model.errors import ShardError as ShardError
    from mm_assets.model.losses import MaterializeError as MaterializeError
    from mm_assets.model.samples import InterleavedBatch as InterleavedBatch
    from mm_assets.model.samples import SourceRef as SourceRef
    from mm_assets.model.samples import build_source_ref as build_source_ref
    from mm_assets.model.samples import parse_source_ref as parse_source_ref
    from mm_assets.model.schema import INTERLEAVED_SCHEMA as INTERLEAVED_SCHEMA
    from mm_assets.model.schema import RESERVED_COLUMNS as RESERVED_COLUMNS
    from mm_assets.model.schema import SchemaMismatch as SchemaMismatch
    from mm_assets.model.schema import align_table as align_table
    from mm_assets.model.schema import reconcile_schema as reconcile_schema
    from mm_assets.model.schema import resolve_schema as resolve_schema
    from mm_assets.storage.errors import StoreError as StoreError

MODULES = {
    "Array3D": "mm_assets.formats.arrow_cache.features",
    "ArrowCache": "mm_assets.formats.arrow_cache.reader_writer",
    "ClassLabel": "mm_assets.formats.arrow_cache.features",
    "DataError": "mm_assets.model.errors",
    "Dataset": "mm_assets.dataset",
    "Document": "mm_assets.formats.document_tars",
    "DocumentSource": "mm_assets.formats.document_tars",
    "Features": "mm_assets.formats.arrow_cache.features",
    "INTERLEAVED_SCHEMA": "mm_assets.model.schema",
    "Image": "mm_assets.formats.arrow_cache.features",
    "InterleavedArrowCacheReader": "mm_assets.formats.arrow_cache.reader_writer",
    "InterleavedArrowCacheWriter": "mm_assets.formats.arrow_cache.reader_writer",
    "InterleavedArrowDataset": "mm_assets.formats.arrow_cache.reader_writer",
    "InterleavedBatch": "mm_assets.model.samples",
    "InterleavedJsonlReader": "mm_assets.formats.jsonl",
    "InterleavedJsonlWriter": "mm_assets.formats.jsonl",
    "InterleavedLanceReader": "mm_assets.formats.lance.reader_writer",
    "InterleavedLanceWriter": "mm_assets.formats.lance.reader_writer",
    "InterleavedMdsReader": "mm_assets.formats.mds",
    "InterleavedMdsWriter": "mm_assets.formats.mds",
    "InterleavedParquetReader": "mm_assets.formats.parquet.reader_writer",
    "InterleavedParquetWriter": "mm_assets.formats.parquet.reader_writer",
    "InterleavedReader": "mm_assets.formats.reader",
    "InterleavedWebdatasetReader": "mm_assets.formats.webdataset.reader",
    "InterleavedWebdatasetWriter": "mm_assets.formats.webdataset.writer",
    "InterleavedWriter": "mm_assets.formats.writer",
    "MaterializeError": "mm_assets.model.losses",
    "MissingExtra": "mm_assets.model.errors",
    "MmAssetsError": "mm_assets.model.errors",
    "MultiModalWebDataset": "mm_assets.formats.paired.dataset",
    "PairedShardList": "mm_assets.formats.paired.joined_tars",
    "PairedTarExpander": "mm_assets.formats.paired.dataset",
    "PartitionReport": "mm_assets.formats.reports",
    "PartitionsFailed": "mm_assets.dataset",
    "RESERVED_COLUMNS": "mm_assets.model.schema",
    "SchemaMismatch": "mm_assets.model.schema",
    "Sequence": "mm_assets.formats.arrow_cache.features",
    "ShardError": "mm_assets.model.errors",
    "ShardedCacheMeta": "mm_assets.formats.arrow_cache",
    "Sink": "mm_assets.formats.writer",
    "SourceRef": "mm_assets.model.samples",
    "StoreError": "mm_assets.storage.errors",
    "Value": "mm_assets.formats.arrow_cache.features",
    "Video": "mm_assets.formats.arrow_cache.features",
    "WriteReport": "mm_assets.formats.reports",
    "align_table": "mm_assets.model.schema",
    "build_source_ref": "mm_assets.model.samples",
    "cache_fingerprint": "mm_assets.formats.arrow_cache.features",
    "decode_example": "mm_assets.formats.arrow_cache.features",
    "documents": "mm_assets.formats.document_tars",
    "encode_example": "mm_assets.formats.arrow_cache.features",
    "materialize": "mm_assets.formats.materialize",
    "parse_source_ref": "mm_assets.model.samples",
    "read": "mm_assets.dataset",
    "read_shard": "mm_assets.formats.arrow_cache.reader_writer",
    "read_sharded_cache_meta": "mm_assets.formats.arrow_cache",
    "reconcile_schema": "mm_assets.model.schema",
    "resolve_schema": "mm_assets.model.schema",
    "validate_sharded_cache": "mm_assets.formats.arrow_cache",
    "write_sharded_arrow_cache": "mm_assets.formats.arrow_cache.build",
}

# Written by hand:

__version__ = "0.1.0"
__all__ = [*MODULES]

if not TYPE_CHECKING:  # hidden from type checkers: they would take any name for a public one

    def __getattr__(name: str) -> Any:
        from mm_assets.interleaved import public_name

        return public_name(__name__, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *MODULES})
