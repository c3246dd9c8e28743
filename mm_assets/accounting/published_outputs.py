"""Sample ids and columns read from published outputs, for when the notes made at publication are lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting.contract import Published
from mm_assets.accounting.lookup import open_parquet
from mm_assets.accounting.records import ShardRecord, ShardRecords
from mm_assets.accounting.shard_columns import ShardColumns, passthrough
from mm_assets.formats.parquet_file import UNREADABLE
from mm_assets.formats.parquet_types import original_schema
from mm_assets.formats.storage import StorageOptions, is_remote
from mm_assets.interleaved.json_values import FieldTally

T = TypeVar("T")

log = logging.getLogger(__name__)

_THREADS = 16  # object stores answer in ~50 ms


class PublishedOutputs:
    """Parquet files of an asset's published shards, found by their records below ``root``.

    Files that are missing or unreadable are logged and skipped: their shards are made again.
    """

    def __init__(self, root: str, asset: str, options: StorageOptions | None = None) -> None:
        self._root = root
        self._asset = asset
        self._options = options

    def sample_ids(self, partitions: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield the sample ids of these shards, each id once per item."""
        return self._each(
            partitions,
            lambda file: file.read(columns=["sample_id"], use_threads=False).column(0).cast(pa.string()),
        )

    def published(self, partitions: Iterable[str]) -> Iterator[tuple[str, Published]]:
        """Yield the columns of these shards, and whether their integers are exact as floats."""
        return self._each(partitions, _published)

    def _each(
        self, partitions: Iterable[str], read: Callable[[pq.ParquetFile], T]
    ) -> Iterator[tuple[str, T]]:
        keys = sorted(partitions)
        if not keys:  # the usual case: no notes are lost
            return
        records = ShardRecords(self._root).read(self._asset, keys)

        def read_output(record: ShardRecord) -> T | None:
            try:
                with open_parquet(record.uri, self._options) as file:
                    return read(file)
            except UNREADABLE as error:
                if (
                    isinstance(error, OSError)
                    and error.errno is not None
                    and not isinstance(error, FileNotFoundError)
                ):
                    raise  # an error of the system, not of Arrow: the file need not be damaged
                log.warning("%s tells nothing of shard %r: %s", record.uri, record.key, error)
                return None

        published = [record for record in records.values() if record.uri]
        with ThreadPoolExecutor(_THREADS if is_remote(self._root) else 1) as threads:
            for record, found in zip(published, threads.map(read_output, published), strict=True):
                if found is not None:
                    yield record.key, found


def _published(file: pq.ParquetFile) -> Published:
    schema = original_schema(file).remove_metadata()
    integers = pa.schema([column for column in passthrough(schema) if pa.types.is_integer(column.type)])
    tallies = {column.name: FieldTally() for column in integers}
    for name, tally in tallies.items():
        for bound in pc.min_max(file.read(columns=[name], use_threads=False).column(0)).as_py().values():
            tally.observe(bound)
    return Published(schema, ShardColumns(declared=integers, declared_ints=tallies))
