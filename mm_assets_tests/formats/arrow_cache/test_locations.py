"""Where a cache may lie: in a local folder, named by a path or a ``file://`` URL."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mm_assets.formats import (
    ArrowCache,
    InterleavedArrowDataset,
    read_shard,
    read_sharded_cache_meta,
    validate_sharded_cache,
)
from mm_assets_tests.formats.arrow_cache.caches import FEATURES, build
from mm_assets_tests.formats.datasets import batch_of, item, write


def test_a_local_url_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"file://{tmp_path}/cache"
    build(url)
    assert os.listdir(tmp_path) == ["cache"]
    meta = read_sharded_cache_meta(url)
    assert validate_sharded_cache(url, FEATURES) == meta
    assert len(ArrowCache(url, FEATURES)) == meta.num_rows
    assert read_shard(f"{url}/{meta.shard_filenames[0]}").num_rows == meta.shard_row_counts[0]
    write("arrow_cache", tmp_path / "rows", batch_of([item("s")]))
    assert len(InterleavedArrowDataset(f"file://{tmp_path}/rows")) == 1


@pytest.mark.parametrize(
    "use", [build, read_sharded_cache_meta, ArrowCache, read_shard, InterleavedArrowDataset]
)
@pytest.mark.parametrize("url", ["s3://bucket/cache", "memory://cache"])
def test_no_other_url_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[str], Any], url: str
) -> None:
    """A builder took one for a folder of this name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"{url}: only local files can be mapped"):
        use(url)
    assert os.listdir(tmp_path) == []
