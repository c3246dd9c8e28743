"""Shards of a cache: Arrow IPC files, their digests, and memory-mapped access to their rows."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from mm_assets.formats.storage import sync
from mm_assets.interleaved.errors import DataError

_BLOCK = 1 << 20


@dataclass(frozen=True)
class CacheShard:
    """A shard in the metadata: file name, rows, bytes of the file, and its xxh3-128 as 32 hex digits."""

    filename: str
    rows: int
    size: int
    digest: str


class ShardWriter:
    """Writer of batches to the shards of one folder, named ``shard-00000.arrow`` ….

    A shard is closed once its batches have reached ``target`` bytes, counted in memory. A shard is opened by
    its first batch, so none is empty.
    """

    def __init__(self, folder: Path, schema: pa.Schema, target: int) -> None:
        self.shards: list[CacheShard] = []
        self._folder, self._schema, self._target = folder, schema, target
        self._sink: pa.OSFile | None = None
        self._bytes = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if self._sink is None:
            self._sink = pa.OSFile(str(self._folder / self._name), "wb")
            self._writer = ipc.new_file(self._sink, self._schema)
            self._bytes = self._rows = 0
        self._writer.write_batch(batch)
        self._bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._bytes >= self._target:
            self.finish()

    def finish(self) -> None:
        """Close the open shard, if there is one, and flush it to disk."""
        if self._sink is None:
            return
        self._writer.close()
        self._sink.close()
        self._sink = None
        path = self._folder / self._name
        self.shards.append(CacheShard(self._name, self._rows, path.stat().st_size, file_digest(path)))
        sync(path)

    def abandon(self) -> None:
        """Close the file of the open shard as it is."""
        if self._sink is not None:
            self._sink.close()

    @property
    def _name(self) -> str:
        return f"shard-{len(self.shards):05d}.arrow"


class OpenShard:
    """The batches of a memory-mapped shard.

    Nothing is read before a row is requested. Closing or removing the file does no harm.

    Raises:
        DataError: The file is no Arrow file; the message names it.
    """

    def __init__(self, path: Path) -> None:
        try:
            options = ipc.IpcReadOptions(use_threads=False)  # fork-safe
            reader = ipc.open_file(pa.memory_map(str(path), "r"), options=options)
            self.schema = reader.schema
            self.batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        except (pa.ArrowInvalid, pa.ArrowSerializationError, pa.ArrowNotImplementedError) as error:
            raise DataError(f"{path}: not an Arrow file: {error}") from error
        self._starts = list(accumulate((batch.num_rows for batch in self.batches), initial=0))

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def locate(self, row: int) -> tuple[pa.RecordBatch, int]:
        """Return the batch of a row, and the row's number in it."""
        index = bisect_right(self._starts, row) - 1
        return self.batches[index], row - self._starts[index]


def file_digest(path: Path) -> str:
    """Return the xxh3-128 of a file's bytes as 32 hex digits."""
    with open(path, "rb", buffering=0) as file:
        return digest_of(file)


def digest_of(file: Any) -> str:
    """Return the xxh3-128 of an open file, from its current position, as 32 hex digits."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_BLOCK))
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
    return digest.hexdigest()
