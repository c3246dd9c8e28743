"""Public classes and functions for training from the outputs: Arrow caches and paired tars.

Each name is loaded on first use, so that importing this package loads no client library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm_assets.formats.arrow_cache.feature_types import Array3D, ClassLabel, Image, Sequence, Value, Video
    from mm_assets.formats.arrow_cache.features import Features, decode_example, encode_example
    from mm_assets.formats.arrow_cache.fingerprint import cache_fingerprint
    from mm_assets.formats.arrow_cache.interleaved_dataset import InterleavedArrowDataset
    from mm_assets.formats.arrow_cache.metadata import (
        ShardedCacheMeta,
        read_sharded_cache_meta,
        validate_sharded_cache,
    )
    from mm_assets.formats.arrow_cache.reader import ArrowCache, read_shard
    from mm_assets.formats.arrow_cache.writer import write_sharded_arrow_cache
    from mm_assets.formats.paired.dataset import MultiModalWebDataset
    from mm_assets.formats.paired.expander import PairedTarExpander
    from mm_assets.formats.paired.shard_list import PairedShardList

_LAZY = {
    "decode_example": "mm_assets.formats.arrow_cache.features",
    "encode_example": "mm_assets.formats.arrow_cache.features",
    "Array3D": "mm_assets.formats.arrow_cache.feature_types",
    "ClassLabel": "mm_assets.formats.arrow_cache.feature_types",
    "Features": "mm_assets.formats.arrow_cache.features",
    "Image": "mm_assets.formats.arrow_cache.feature_types",
    "Sequence": "mm_assets.formats.arrow_cache.feature_types",
    "Value": "mm_assets.formats.arrow_cache.feature_types",
    "Video": "mm_assets.formats.arrow_cache.feature_types",
    "cache_fingerprint": "mm_assets.formats.arrow_cache.fingerprint",
    "InterleavedArrowDataset": "mm_assets.formats.arrow_cache.interleaved_dataset",
    "ShardedCacheMeta": "mm_assets.formats.arrow_cache.metadata",
    "read_sharded_cache_meta": "mm_assets.formats.arrow_cache.metadata",
    "validate_sharded_cache": "mm_assets.formats.arrow_cache.metadata",
    "ArrowCache": "mm_assets.formats.arrow_cache.reader",
    "read_shard": "mm_assets.formats.arrow_cache.reader",
    "write_sharded_arrow_cache": "mm_assets.formats.arrow_cache.writer",
    "MultiModalWebDataset": "mm_assets.formats.paired.dataset",
    "PairedShardList": "mm_assets.formats.paired.shard_list",
    "PairedTarExpander": "mm_assets.formats.paired.expander",
}

__all__ = [
    "Array3D",
    "ArrowCache",
    "ClassLabel",
    "Features",
    "Image",
    "InterleavedArrowDataset",
    "MultiModalWebDataset",
    "PairedShardList",
    "PairedTarExpander",
    "Sequence",
    "ShardedCacheMeta",
    "Value",
    "Video",
    "cache_fingerprint",
    "decode_example",
    "encode_example",
    "read_shard",
    "read_sharded_cache_meta",
    "validate_sharded_cache",
    "write_sharded_arrow_cache",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
