"""Lookup of one sample's rows in outputs of each format, without reading other rows.

`PublishedOutputs` reads schema and sample ids of whole outputs, where their accounts do not tell.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting import ITEMS_SCHEMA, ShardRecord
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.canonical import Rows
from mm_assets.accounting.contract import Published
from mm_assets.accounting.survey import ShardColumns, passthrough
from mm_assets.formats.materialize import Fetcher, open_fetcher
from mm_assets.formats.names import sample_key
from mm_assets.formats.parquet import SHARD, UNREADABLE, original_schema, possible_groups
from mm_assets.formats.partitions import Partition, partition_name
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import reader_for
from mm_assets.formats.tar import BLOCK, END_BLOCKS
from mm_assets.model.errors import Fault
from mm_assets.model.json_codec import FieldTally
from mm_assets.storage.errors import is_store_failure, located
from mm_assets.storage.files import (
    StorageOptions,
    exists,
    filesystem,
    is_remote,
    join,
    open_binary,
    regular_file,
)
from mm_assets.storage.listing import expand_paths
from mm_assets.storage.stamps import parallel_map

COLUMNS = ["sample_id", "position", "modality", "source_ref", "materialize_error"]
_THREADS = 16  # object stores answer in ~50 ms
_AT_ONCE = 16  # outputs whose columns are in memory
_OFFSET = np.dtype("<u8")
_COPIED = 16 << 20  # bytes of a sample in memory at a time


def in_accounts(folder: str, sample_id: str, options: StorageOptions | None = None) -> dict[str | None, Rows]:
    """Return lost items of a sample by partition, from the accounts in a folder, else as `in_parquet`.

    An account that cannot be read is logged and left out: the next run makes it again.
    """

    def lost(file: str) -> tuple[str, Rows] | None:
        try:
            return _in_file(file, folder, sample_id, ITEMS_SCHEMA.names, options)
        except ValueError as error:
            log.warning("%s", error)
            return None

    return _in_files(folder, options, lost)


def in_parquet(
    folder: str, sample_id: str, options: StorageOptions | None = None, columns: Sequence[str] = COLUMNS
) -> dict[str | None, Rows]:
    """Return rows of a sample by partition, from all Parquet files below a folder.

    There are none for a missing folder. It reads each file's footer; of row groups whose statistics leave
    room for the id, the ``sample_id``; of those that have it, ``columns``.
    """
    return _in_files(folder, options, lambda file: _in_file(file, folder, sample_id, columns, options))


def _in_files(
    folder: str, options: StorageOptions | None, look: Callable[[str], tuple[str, Rows] | None]
) -> dict[str | None, Rows]:
    try:
        files = expand_paths(folder, (".parquet",), options)
    except FileNotFoundError:
        return {}
    with ThreadPoolExecutor(_THREADS) as threads:
        return _merged(result for result in threads.map(look, files) if result is not None)


def in_tar(uri: str, sample_id: str, options: StorageOptions | None = None) -> Rows:
    """Return rows of a sample in one of our tars; none when the tar does not exist.

    No other sample's images are read.
    """
    from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader

    if not exists(uri, options):
        return []
    with sample_tar(uri, sample_id, options) as tar:
        if tar is None:
            return []
        return _projected(
            InterleavedWebdatasetReader(tar, materialize=False, storage_options=options), tar, sample_id
        )


def in_output(kind: str, uri: str, sample_id: str, options: StorageOptions | None = None) -> Rows:
    """Return rows of a sample in one output, by the reader of its format; none when it does not exist.

    No image is read.
    """
    if not exists(uri, options):
        return []
    return _projected(reader_for(kind, uri, storage_options=options), uri, sample_id)


def in_lance(
    uri: str, sample_id: str, partitions: Iterable[str], options: StorageOptions | None = None
) -> dict[str | None, Rows]:
    """Return rows of a sample in a Lance table, by the partition they were committed with.

    There are none without a table. The partition is None in a table of others.

    Args:
        partitions: partitions to try first. The records of all others are read only when it is none of them.
    """
    # Checked before Lance is imported: it may not be installed.
    if not exists(join(uri, "_versions"), options):
        return {}
    from mm_assets.formats.lance.reader_writer import lance_options
    from mm_assets.formats.lance.snapshot import ids_predicate
    from mm_assets.formats.lance.table import LanceTable

    table = LanceTable(uri, lance_options(uri, options))
    if not table.exists():
        return {}
    dataset = table.dataset()
    rows = dataset.scanner(columns=COLUMNS, filter=ids_predicate([sample_id])).to_table().to_pylist()
    return {_owner(dataset, uri, sample_id, partitions, options): rows} if rows else {}


def _projected(reader: InterleavedReader, file: str, sample_id: str) -> Rows:
    _, tables = reader.project(Partition("", (file,)), COLUMNS)
    return [
        row
        for table in tables
        for row in table.filter(pc.equal(table.column("sample_id"), sample_id)).to_pylist()
    ]


def _in_file(
    file: str, folder: str, sample_id: str, columns: Sequence[str], options: StorageOptions | None
) -> tuple[str, Rows] | None:
    try:
        with located(file), open_parquet(file, options) as parquet:
            rows = _rows_of(parquet, sample_id, columns)
            shard = (parquet.metadata.metadata or {}).get(SHARD.encode())
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        if is_store_failure(error):
            raise
        raise ValueError(f"{file}: no output of the graph, or damaged: {error}") from error
    return (shard.decode() if shard else partition_name(file, folder), rows) if rows else None


def _rows_of(parquet: pq.ParquetFile, sample_id: str, columns: Sequence[str]) -> Rows:
    rows: Rows = []
    if missing := [name for name in columns if name not in parquet.schema_arrow.names]:
        raise ValueError(f"column {missing[0]!r} is missing")
    for group in possible_groups(parquet.metadata, "sample_id", sample_id):
        ids = parquet.read_row_group(group, columns=["sample_id"], use_threads=False).column(0)
        found = pc.equal(ids, sample_id)
        if pc.any(found).as_py():
            rows += (
                parquet.read_row_group(group, columns=list(columns), use_threads=False)
                .filter(found)
                .to_pylist()
            )
    return rows


@contextmanager
def open_parquet(file: str, options: StorageOptions | None) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, and close it at the end; of a remote file only requested ranges are read."""
    if not is_remote(file):
        with pq.ParquetFile(regular_file(file), pre_buffer=False) as parquet:
            yield parquet
        return
    fs, path = filesystem(file, options)
    with fs.open(path, "rb", cache_type="none") as remote:  # caches read ahead by megabytes
        yield pq.ParquetFile(pa.PythonFile(remote, mode="r"), pre_buffer=False)


def _merged(found: Iterable[tuple[str, Rows]]) -> dict[str | None, Rows]:
    merged: dict[str | None, Rows] = {}
    for partition, rows in found:
        merged.setdefault(partition, []).extend(rows)
    return merged


@contextmanager
def sample_tar(uri: str, sample_id: str, options: StorageOptions | None) -> Iterator[str | None]:
    """Yield a tar with the sample: its members alone, cut out by the index beside the tar, or the tar itself.

    The tar is one that this project wrote.

    None is yielded if the index shows that the tar does not have the sample.
    """
    if not exists(f"{uri}.idx", options):
        yield uri
        return
    with open_binary(f"{uri}.idx", options) as file:
        starts = np.frombuffer(file.read(), _OFFSET).tolist()
    prefix = f"{sample_key(sample_id)}.".encode()
    with (
        open_fetcher(uri, uri, options) as fetcher,
        tempfile.TemporaryDirectory(prefix="mm-assets-") as folder,
    ):
        headers = _ranges(fetcher, [(start, BLOCK) for start in starts[:-1]])
        at = next((number for number, header in enumerate(headers) if header.startswith(prefix)), None)
        if at is None:
            yield None
            return
        path = Path(folder, "sample.tar")
        with open(path, "wb") as file:
            for start in range(starts[at], starts[at + 1], _COPIED):
                file.writelines(_ranges(fetcher, [(start, min(_COPIED, starts[at + 1] - start))]))
            file.write(bytes(END_BLOCKS))
        yield str(path)


def _ranges(fetcher: Fetcher, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
    results = fetcher.fetch([(None, offset, size) for offset, size in ranges])
    for result in results:
        if isinstance(result, Fault):
            raise OSError(result.message)
    return results  # type: ignore[return-value]


def _owner(
    dataset: Any, uri: str, sample_id: str, partitions: Iterable[str], options: StorageOptions | None
) -> str | None:
    from mm_assets.formats.lance import Location
    from mm_assets.formats.lance.reader_writer import lance_options
    from mm_assets.formats.lance.records import PartitionRecord, PartitionRecords
    from mm_assets.formats.lance.snapshot import Snapshot

    snapshot = Snapshot(dataset)
    records = PartitionRecords(Location(uri, lance_options(uri, options)))

    def partition_with(found: Mapping[str, list[PartitionRecord]]) -> str | None:
        live = {partition: snapshot.live(entries) for partition, entries in found.items()}
        return next(
            (
                p
                for p, record in live.items()
                if record and pc.index(record.sample_ids(), sample_id).as_py() >= 0
            ),
            None,
        )

    return partition_with(records.of(list(partitions))) or partition_with(records.all())


T = TypeVar("T")

log = logging.getLogger(__name__)


class PublishedOutputs:
    """Parquet files of an asset's published shards, found by their records below ``root``.

    Files that are missing or unreadable are logged and skipped: their shards are made again.
    """

    def __init__(self, root: str, asset: str, options: StorageOptions | None = None) -> None:
        self._root = root
        self._asset = asset
        self._options = options

    def sample_ids(self, partitions: Iterable[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield the sample ids of these shards."""
        return self._each(partitions, _sample_ids)

    def published(self, partitions: Iterable[str]) -> Iterator[tuple[str, Published]]:
        """Yield the columns of these shards, and whether their integers are exact as floats."""
        return self._each(partitions, _published)

    def _each(
        self, partitions: Iterable[str], read: Callable[[pq.ParquetFile], T]
    ) -> Iterator[tuple[str, T]]:
        keys = sorted(partitions)
        if not keys:  # the usual case: accounts tell
            return
        records = Ledger(self._root, self._options).records(self._asset, keys)

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
        for start in range(0, len(published), _AT_ONCE):
            some = published[start : start + _AT_ONCE]
            for record, found in zip(some, parallel_map(read_output, some, self._root), strict=True):
                if found is not None:
                    yield record.key, found


def _sample_ids(file: pq.ParquetFile) -> pa.ChunkedArray:
    ids = file.read(columns=["sample_id"], use_threads=False).column(0).cast(pa.string())
    return pa.chunked_array([ids.unique()])


def _published(file: pq.ParquetFile) -> Published:
    schema = original_schema(file).remove_metadata()
    integers = pa.schema([column for column in passthrough(schema) if pa.types.is_integer(column.type)])
    tallies = {column.name: FieldTally() for column in integers}
    for name, tally in tallies.items():
        for bound in pc.min_max(file.read(columns=[name], use_threads=False).column(0)).as_py().values():
            tally.observe(bound)
    return Published(schema, ShardColumns(declared=integers, declared_ints=tallies))
