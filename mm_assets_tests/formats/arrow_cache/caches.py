"""Small caches, what is in them, and what lies on disk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mm_assets.formats import (
    ArrowCache,
    Features,
    Image,
    ShardedCacheMeta,
    Value,
    validate_sharded_cache,
    write_sharded_arrow_cache,
)

FEATURES = Features({"number": Value("int32"), "mark": Value("string"), "data": Image()})


def examples(mark: str, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(count):
        yield f"{mark}-{number}", {"number": number, "mark": mark, "data": data(mark, number)}


def data(mark: str, number: int) -> bytes:
    return random.Random(f"{mark}-{number}").randbytes(100 + number)


def build(cache_dir: Path | str, mark: str = "first", count: int = 30) -> ShardedCacheMeta:
    """Several shards of several batches."""
    return write_sharded_arrow_cache(
        examples(mark, count), FEATURES, cache_dir, shard_size_bytes=1000, batch_size=3
    )


def content(cache_dir: Path) -> tuple[str, int]:
    """The mark and the count of a cache that is whole and of one build."""
    validate_sharded_cache(cache_dir, FEATURES)
    rows = list(ArrowCache(cache_dir, FEATURES, decode=False))
    mark = rows[0]["mark"]
    assert rows == [example for _, example in examples(mark, len(rows))]
    return mark, len(rows)


def require_tidy(cache_dir: Path) -> None:
    """Nothing but the published files, in the folder and beside it."""
    meta = validate_sharded_cache(cache_dir, FEATURES)
    assert {path.name for path in cache_dir.iterdir()} == {"_metadata.json", *meta.shard_filenames}
    assert [path for path in cache_dir.parent.iterdir() if path != cache_dir] == []


def marks(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """What differs for a file that was written again; reading one changes none of it."""
    found = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in found.items()}
