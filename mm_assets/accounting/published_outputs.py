"""What a landed output tells of itself, for when the notes taken as it landed are lost."""

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


class LandedOutputs:
    """The Parquet files of an asset's landed shards, found by their records below ``root``.

    One that is not there, or cannot be read, is logged and tells nothing: its shard is made again.
    """

    def __init__(self, root: str, asset: str, options: StorageOptions | None = None) -> None:
        self._root = root
        self._asset = asset
        self._options = options

    def sample_ids(self, partitions: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """The sample ids of these shards, each as often as it has items."""
        return self._each(
            partitions,
            lambda file: file.read(columns=["sample_id"], use_threads=False).column(0).cast(pa.string()),
        )

    def published(self, partitions: Iterable[str]) -> Iterator[tuple[str, Published]]:
        """The columns of these shards, and whether the integers in them are exact as floats."""
        return self._each(partitions, _published)

    def _each(
        self, partitions: Iterable[str], read: Callable[[pq.ParquetFile], T]
    ) -> Iterator[tuple[str, T]]:
        wanted = sorted(partitions)
        if not wanted:  # as it should be
            return
        records = ShardRecords(self._root).read(self._asset, wanted)

        def told(record: ShardRecord) -> T | None:
            try:
                with open_parquet(record.uri, self._options) as file:
                    return read(file)
            except UNREADABLE as error:
                if (
                    isinstance(error, OSError)
                    and error.errno is not None
                    and not isinstance(error, FileNotFoundError)
                ):
                    raise  # of the system, not of Arrow: what cannot be read now must not pass for damaged
                log.warning("%s tells nothing of shard %r: %s", record.uri, record.key, error)
                return None

        landed = [record for record in records.values() if record.uri]
        with ThreadPoolExecutor(_THREADS if is_remote(self._root) else 1) as threads:
            for record, found in zip(landed, threads.map(told, landed), strict=True):
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
