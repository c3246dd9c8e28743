"""Reader of cache rows, by number or in order, from memory-mapped shards."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.formats.arrow_cache import verified
from mm_assets.formats.arrow_cache.features import Features, decode_example
from mm_assets.formats.arrow_cache.metadata import (
    METADATA_FILE,
    local_path_of,
    parse_metadata,
    read_sharded_cache_meta,
    require_features,
)
from mm_assets.formats.arrow_cache.shards import CacheShard, OpenShard
from mm_assets.interleaved.errors import DataError

__all__ = ["ArrowCache", "read_shard"]


class ArrowCache:
    """Map-style dataset of the examples of a cache, for a PyTorch ``DataLoader``; also iterable.

    A shard is opened when the first of its rows is requested, in the requesting process, and read once for
    its digest. So the object can be pickled, and used in forked and spawned workers.

    Args:
        cache_dir: Folder of the cache.
        features: The expected features; None accepts any.
        decode: False returns values as stored: a picture as the bytes of its file.

    Raises:
        FileNotFoundError: There is no cache.
        ValueError: The cache is damaged (the message names the file) or has other features. Reading a row
            raises it if the shard is damaged, or gone because the cache was rebuilt.
    """

    def __init__(
        self, cache_dir: str | os.PathLike[str], features: Features | None = None, *, decode: bool = True
    ) -> None:
        self.meta = read_sharded_cache_meta(cache_dir)
        if features is not None:
            require_features(self.meta, features)
        elif decode and self.meta.schema is not None:
            raise ValueError(
                f"{cache_dir}: interleaved rows; open it with InterleavedArrowDataset, or decode=False"
            )
        self._decode = decode
        self._starts = list(accumulate(self.meta.shard_row_counts, initial=0))
        self._open: dict[int, OpenShard] = {}

    @property
    def features(self) -> Features:
        return self.meta.features

    def __repr__(self) -> str:
        return repr(self.meta).replace("ShardedCacheMeta", "ArrowCache", 1)

    def __len__(self) -> int:
        return self.meta.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = operator.index(index)
        if row < 0:
            row += len(self)
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        number = bisect_right(self._starts, row) - 1
        batch, row = self._shard(number).locate(row - self._starts[number])
        return self._example(batch, row)

    def take(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        """Return the examples of these rows, in this order."""
        return [self[index] for index in indices]

    __getitems__ = take  # a DataLoader fetches the rows of a batch at once

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            for row in range(batch.num_rows):
                yield self._example(batch, row)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, as stored in the shards, without a copy."""
        for number in range(self.meta.num_shards):
            yield from self._shard(number).batches

    def column(self, name: str) -> Iterator[pa.Array]:
        """Yield one column of all rows as stored. Nothing else is read, so no digest is checked."""
        for number in range(self.meta.num_shards):
            for batch in self._opened(number, verified.require_size).batches:
                yield batch.column(name)

    def rows(self, start: int, stop: int) -> list[pa.RecordBatch]:
        """Return the rows from ``start`` up to ``stop``, as stored in the shards, without a copy."""
        found = []
        while start < stop:
            number = bisect_right(self._starts, start) - 1
            batch, row = self._shard(number).locate(start - self._starts[number])
            found.append(batch.slice(row, stop - start))
            start += found[-1].num_rows
        return found

    def _example(self, batch: pa.RecordBatch, row: int) -> dict[str, Any]:
        stored = {
            name: column[row].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        return decode_example(stored, self.features) if self._decode else stored

    def _shard(self, number: int) -> OpenShard:
        if (shard := self._open.get(number)) is None:
            shard = self._open[number] = self._opened(number, verified.check_once)
        return shard

    def _opened(self, number: int, check: Callable[[Path, CacheShard], Any]) -> OpenShard:
        path, declared = self.meta.shard_paths[number], self.meta.shards[number]
        try:
            check(path, declared)
            shard = OpenShard(path)
        except (ValueError, OSError) as error:
            if read_sharded_cache_meta(self.meta.cache_dir).shard_filenames == self.meta.shard_filenames:
                raise
            raise DataError(f"{path}: the cache was built anew since it was opened; open it again") from error
        if shard.rows != declared.rows:
            raise DataError(f"{path}: {shard.rows} rows, not {declared.rows} as {METADATA_FILE} says")
        return shard

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_verified": verified.export_stamps(self.meta.shard_paths)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        verified.import_stamps(state.pop("_verified"))
        self.__dict__.update(state)


def read_shard(shard_path: str | os.PathLike[str]) -> pa.Table:
    """Return a shard as a table in mapped memory, without a copy.

    If `_metadata.json` lies beside the file and names it, the file is read once in this process for its
    digest.

    Raises:
        ValueError: A file is damaged; the message names it.
        FileNotFoundError: The file does not exist.
    """
    path = local_path_of(shard_path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    metadata = path.parent / METADATA_FILE
    if metadata.is_file():
        for declared in parse_metadata(path.parent, metadata.read_bytes()).shards:
            if declared.filename == path.name:
                verified.check_once(path, declared)
    shard = OpenShard(path)
    return pa.Table.from_batches(shard.batches, shard.schema)
