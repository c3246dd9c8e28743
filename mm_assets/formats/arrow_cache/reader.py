"""Rows of a cache by number or in order, from memory-mapped shards."""

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

__all__ = ["ArrowCache", "read_shard"]


class ArrowCache:
    """A cache as a map from row number to example: what a PyTorch ``DataLoader`` takes as dataset, and an
    iterable of all examples.

    A shard is opened when the first of its rows is asked for, in the process that asks, and read once for its
    digest. So the object can be pickled, and used in forked and spawned workers. ``decode=False`` gives
    values as they are stored: a picture as the bytes of its file.

    Raises ``FileNotFoundError`` where there is no cache, and ``ValueError`` naming the file for a damaged
    one, and for one of other ``features``. Asking for a row raises ``ValueError`` when its shard is damaged,
    or gone because the cache was built anew.
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
        """The examples of these rows, in this order."""
        return [self[index] for index in indices]

    __getitems__ = take  # a DataLoader asks for the rows of a batch at once

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            for row in range(batch.num_rows):
                yield self._example(batch, row)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in order as they lie in the shards, without a copy."""
        for number in range(self.meta.num_shards):
            yield from self._shard(number).batches

    def column(self, name: str) -> Iterator[pa.Array]:
        """One column of all rows as it lies in the shards. Nothing else is read, so no digest is looked at."""
        for number in range(self.meta.num_shards):
            for batch in self._opened(number, verified.require_size).batches:
                yield batch.column(name)

    def rows(self, start: int, stop: int) -> list[pa.RecordBatch]:
        """The rows from ``start`` up to ``stop``, as they lie in the shards, without a copy."""
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
        path, told = self.meta.shard_paths[number], self.meta.shards[number]
        try:
            check(path, told)
            shard = OpenShard(path)
        except (ValueError, OSError) as error:
            if read_sharded_cache_meta(self.meta.cache_dir).shard_filenames == self.meta.shard_filenames:
                raise
            raise ValueError(
                f"{path}: the cache was built anew since it was opened; open it again"
            ) from error
        if shard.rows != told.rows:
            raise ValueError(f"{path}: {shard.rows} rows, not {told.rows} as {METADATA_FILE} says")
        return shard

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_verified": verified.known(self.meta.shard_paths)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        verified.learn(state.pop("_verified"))
        self.__dict__.update(state)


def read_shard(shard_path: str | os.PathLike[str]) -> pa.Table:
    """A shard as a table in mapped memory: nothing is copied.

    Where `_metadata.json` lies beside it and names it, the file is read once in this process for its digest.
    Raises ``ValueError`` naming a damaged file, ``FileNotFoundError`` for one that is not there.
    """
    path = local_path_of(shard_path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    metadata = path.parent / METADATA_FILE
    if metadata.is_file():
        for told in parse_metadata(path.parent, metadata.read_bytes()).shards:
            if told.filename == path.name:
                verified.check_once(path, told)
    shard = OpenShard(path)
    return pa.Table.from_batches(shard.batches, shard.schema)
