"""Every public name and the module that defines it.

Written by ``make public-names`` from the ``__all__`` of the modules: change those, not this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mm_assets.formats.arrow_cache.feature_types import Array3D as Array3D
    from mm_assets.formats.arrow_cache.feature_types import ClassLabel as ClassLabel
    from mm_assets.formats.arrow_cache.feature_types import Image as Image
    from mm_assets.formats.arrow_cache.feature_types import Sequence as Sequence
    from mm_assets.formats.arrow_cache.feature_types import Value as Value
    from mm_assets.formats.arrow_cache.feature_types import Video as Video
    from mm_assets.formats.arrow_cache.features import Features as Features
    from mm_assets.formats.arrow_cache.features import decode_example as decode_example
    from mm_assets.formats.arrow_cache.features import encode_example as encode_example
    from mm_assets.formats.arrow_cache.fingerprint import cache_fingerprint as cache_fingerprint
    from mm_assets.formats.arrow_cache.interleaved_dataset import (
        InterleavedArrowDataset as InterleavedArrowDataset,
    )
    from mm_assets.formats.arrow_cache.interleaved_reader import (
        InterleavedArrowCacheReader as InterleavedArrowCacheReader,
    )
    from mm_assets.formats.arrow_cache.interleaved_writer import (
        InterleavedArrowCacheWriter as InterleavedArrowCacheWriter,
    )
    from mm_assets.formats.arrow_cache.metadata import ShardedCacheMeta as ShardedCacheMeta
    from mm_assets.formats.arrow_cache.metadata import read_sharded_cache_meta as read_sharded_cache_meta
    from mm_assets.formats.arrow_cache.metadata import validate_sharded_cache as validate_sharded_cache
    from mm_assets.formats.arrow_cache.reader import ArrowCache as ArrowCache
    from mm_assets.formats.arrow_cache.reader import read_shard as read_shard
    from mm_assets.formats.arrow_cache.writer import write_sharded_arrow_cache as write_sharded_arrow_cache
    from mm_assets.formats.jsonl.reader import InterleavedJsonlReader as InterleavedJsonlReader
    from mm_assets.formats.jsonl.writer import InterleavedJsonlWriter as InterleavedJsonlWriter
    from mm_assets.formats.lance.reader import InterleavedLanceReader as InterleavedLanceReader
    from mm_assets.formats.lance.writer import InterleavedLanceWriter as InterleavedLanceWriter
    from mm_assets.formats.materialize import materialize as materialize
    from mm_assets.formats.paired.dataset import MultiModalWebDataset as MultiModalWebDataset
    from mm_assets.formats.paired.expander import PairedTarExpander as PairedTarExpander
    from mm_assets.formats.paired.shard_list import PairedShardList as PairedShardList
    from mm_assets.formats.parquet import InterleavedParquetReader as InterleavedParquetReader
    from mm_assets.formats.parquet import InterleavedParquetWriter as InterleavedParquetWriter
    from mm_assets.formats.reader import InterleavedReader as InterleavedReader
    from mm_assets.formats.reports import PartitionReport as PartitionReport
    from mm_assets.formats.reports import WriteReport as WriteReport
    from mm_assets.formats.store_errors import StoreError as StoreError
    from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader as InterleavedWebdatasetReader
    from mm_assets.formats.webdataset.writer import InterleavedWebdatasetWriter as InterleavedWebdatasetWriter
    from mm_assets.formats.writer import InterleavedWriter as InterleavedWriter
    from mm_assets.formats.writer import Sink as Sink
    from mm_assets.interleaved.batch import InterleavedBatch as InterleavedBatch
    from mm_assets.interleaved.errors import DataError as DataError
    from mm_assets.interleaved.errors import MmAssetsError as MmAssetsError
    from mm_assets.interleaved.errors import ShardError as ShardError
    from mm_assets.interleaved.extras import MissingExtra as MissingExtra
    from mm_assets.interleaved.policies import MaterializeError as MaterializeError
    from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA as INTERLEAVED_SCHEMA
    from mm_assets.interleaved.schema import RESERVED_COLUMNS as RESERVED_COLUMNS
    from mm_assets.interleaved.schema import SchemaMismatch as SchemaMismatch
    from mm_assets.interleaved.schema import align_table as align_table
    from mm_assets.interleaved.schema import reconcile_schema as reconcile_schema
    from mm_assets.interleaved.schema import resolve_schema as resolve_schema
    from mm_assets.interleaved.source_ref import SourceRef as SourceRef
    from mm_assets.interleaved.source_ref import build_source_ref as build_source_ref
    from mm_assets.interleaved.source_ref import parse_source_ref as parse_source_ref

MODULES = {
    "Array3D": "mm_assets.formats.arrow_cache.feature_types",
    "ArrowCache": "mm_assets.formats.arrow_cache.reader",
    "ClassLabel": "mm_assets.formats.arrow_cache.feature_types",
    "DataError": "mm_assets.interleaved.errors",
    "Features": "mm_assets.formats.arrow_cache.features",
    "INTERLEAVED_SCHEMA": "mm_assets.interleaved.schema",
    "Image": "mm_assets.formats.arrow_cache.feature_types",
    "InterleavedArrowCacheReader": "mm_assets.formats.arrow_cache.interleaved_reader",
    "InterleavedArrowCacheWriter": "mm_assets.formats.arrow_cache.interleaved_writer",
    "InterleavedArrowDataset": "mm_assets.formats.arrow_cache.interleaved_dataset",
    "InterleavedBatch": "mm_assets.interleaved.batch",
    "InterleavedJsonlReader": "mm_assets.formats.jsonl.reader",
    "InterleavedJsonlWriter": "mm_assets.formats.jsonl.writer",
    "InterleavedLanceReader": "mm_assets.formats.lance.reader",
    "InterleavedLanceWriter": "mm_assets.formats.lance.writer",
    "InterleavedParquetReader": "mm_assets.formats.parquet",
    "InterleavedParquetWriter": "mm_assets.formats.parquet",
    "InterleavedReader": "mm_assets.formats.reader",
    "InterleavedWebdatasetReader": "mm_assets.formats.webdataset.reader",
    "InterleavedWebdatasetWriter": "mm_assets.formats.webdataset.writer",
    "InterleavedWriter": "mm_assets.formats.writer",
    "MaterializeError": "mm_assets.interleaved.policies",
    "MissingExtra": "mm_assets.interleaved.extras",
    "MmAssetsError": "mm_assets.interleaved.errors",
    "MultiModalWebDataset": "mm_assets.formats.paired.dataset",
    "PairedShardList": "mm_assets.formats.paired.shard_list",
    "PairedTarExpander": "mm_assets.formats.paired.expander",
    "PartitionReport": "mm_assets.formats.reports",
    "RESERVED_COLUMNS": "mm_assets.interleaved.schema",
    "SchemaMismatch": "mm_assets.interleaved.schema",
    "Sequence": "mm_assets.formats.arrow_cache.feature_types",
    "ShardError": "mm_assets.interleaved.errors",
    "ShardedCacheMeta": "mm_assets.formats.arrow_cache.metadata",
    "Sink": "mm_assets.formats.writer",
    "SourceRef": "mm_assets.interleaved.source_ref",
    "StoreError": "mm_assets.formats.store_errors",
    "Value": "mm_assets.formats.arrow_cache.feature_types",
    "Video": "mm_assets.formats.arrow_cache.feature_types",
    "WriteReport": "mm_assets.formats.reports",
    "align_table": "mm_assets.interleaved.schema",
    "build_source_ref": "mm_assets.interleaved.source_ref",
    "cache_fingerprint": "mm_assets.formats.arrow_cache.fingerprint",
    "decode_example": "mm_assets.formats.arrow_cache.features",
    "encode_example": "mm_assets.formats.arrow_cache.features",
    "materialize": "mm_assets.formats.materialize",
    "parse_source_ref": "mm_assets.interleaved.source_ref",
    "read_shard": "mm_assets.formats.arrow_cache.reader",
    "read_sharded_cache_meta": "mm_assets.formats.arrow_cache.metadata",
    "reconcile_schema": "mm_assets.interleaved.schema",
    "resolve_schema": "mm_assets.interleaved.schema",
    "validate_sharded_cache": "mm_assets.formats.arrow_cache.metadata",
    "write_sharded_arrow_cache": "mm_assets.formats.arrow_cache.writer",
}
