"""Lookup of one sample's rows in outputs of each format, without reading other rows."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting import ITEMS_SCHEMA
from mm_assets.accounting.canonical import Rows, SampleQuery
from mm_assets.formats.materialize import Fetcher, open_fetcher
from mm_assets.formats.names import sample_key
from mm_assets.formats.parquet import SHARD, UNREADABLE, parquet_file, possible_groups
from mm_assets.formats.partitions import Partition, partition_name
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import reader_for
from mm_assets.formats.tar import BLOCK, END_BLOCKS
from mm_assets.model.errors import Fault
from mm_assets.storage.errors import is_store_failure, located
from mm_assets.storage.files import exists, join, open_binary
from mm_assets.storage.listing import expand_paths

log = logging.getLogger(__name__)

COLUMNS = ["sample_id", "position", "modality", "source_ref", "materialize_error"]
_THREADS = 16  # object stores answer in ~50 ms
_OFFSET = np.dtype("<u8")
_COPIED = 16 << 20  # bytes of a sample in memory at a time


def in_accounts(folder: str, sample_id: str) -> dict[str | None, Rows]:
    """Return lost items of a sample by partition, from the accounts in a folder.

    An account that cannot be read is logged and left out: the next run makes it again.
    """

    def lost(file: str) -> tuple[str, Rows] | None:
        try:
            return _in_file(file, folder, sample_id, ITEMS_SCHEMA.names)
        except ValueError as error:
            log.warning("%s", error)
            return None

    return _in_files(folder, lost)


def find_in_parquet(query: SampleQuery) -> Mapping[str | None, Rows]:
    """Return rows of a sample by partition, from all Parquet files below a folder; none for a missing folder.

    It reads each file's footer; of row groups whose statistics leave room for the id, the ``sample_id``; of
    those that have it, the other columns.
    """
    folder, sample_id = query.folder, query.sample_id
    return _in_files(folder, lambda file: _in_file(file, folder, sample_id, COLUMNS))


def _in_files(folder: str, look: Callable[[str], tuple[str, Rows] | None]) -> dict[str | None, Rows]:
    try:
        files = expand_paths(folder, (".parquet",))
    except FileNotFoundError:
        return {}
    with ThreadPoolExecutor(_THREADS) as threads:
        return _merged(result for result in threads.map(look, files) if result is not None)


def find_in_tars(query: SampleQuery) -> Mapping[str | None, Rows]:
    """Return rows of a sample by partition, from our tars of these partitions."""
    return {name: _in_tar(query.uri_of(name), query.sample_id) for name in query.partitions}


def _in_tar(uri: str, sample_id: str) -> Rows:
    """Return rows of a sample in one of our tars; none when it does not exist. No other's images are read."""
    from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader

    if not exists(uri):
        return []
    with sample_tar(uri, sample_id) as tar:
        if tar is None:
            return []
        reader = InterleavedWebdatasetReader(tar, materialize=False)
        return _projected(reader, tar, sample_id)


def in_lance(uri: str, sample_id: str, partitions: Iterable[str]) -> dict[str | None, Rows]:
    """Return rows of a sample in a Lance table, by the partition they were committed with.

    There are none without a table. The partition is None in a table of others.

    Args:
        partitions: partitions to try first. The records of all others are read only when it is none of them.
    """
    # Checked before Lance is imported: it may not be installed.
    if not exists(join(uri, "_versions")):
        return {}
    from mm_assets.formats.lance.reader_writer import lance_options
    from mm_assets.formats.lance.snapshot import ids_predicate
    from mm_assets.formats.lance.table import LanceTable

    table = LanceTable(uri, lance_options(uri, None))
    if not table.exists():
        return {}
    dataset = table.dataset()
    rows = dataset.scanner(columns=COLUMNS, filter=ids_predicate([sample_id])).to_table().to_pylist()
    return {_owner(dataset, uri, sample_id, partitions): rows} if rows else {}


def _projected(reader: InterleavedReader, file: str, sample_id: str) -> Rows:
    _, tables = reader.project(Partition("", (file,)), COLUMNS)
    return [
        row
        for table in tables
        for row in table.filter(pc.equal(table.column("sample_id"), sample_id)).to_pylist()
    ]


def _in_file(file: str, folder: str, sample_id: str, columns: Sequence[str]) -> tuple[str, Rows] | None:
    try:
        with located(file), parquet_file(file) as parquet:
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
    for group in possible_groups(parquet.metadata, sample_id):
        ids = parquet.read_row_group(group, columns=["sample_id"], use_threads=False).column(0)
        found = pc.equal(ids, sample_id)
        if pc.any(found).as_py():
            rows += (
                parquet.read_row_group(group, columns=list(columns), use_threads=False)
                .filter(found)
                .to_pylist()
            )
    return rows


def _merged(found: Iterable[tuple[str, Rows]]) -> dict[str | None, Rows]:
    merged: dict[str | None, Rows] = {}
    for partition, rows in found:
        merged.setdefault(partition, []).extend(rows)
    return merged


@contextmanager
def sample_tar(uri: str, sample_id: str) -> Iterator[str | None]:
    """Yield a tar with the sample: its members alone, cut out by the index beside the tar, or the tar itself.

    The tar is one that this project wrote.

    None is yielded if the index shows that the tar does not have the sample.
    """
    if not exists(f"{uri}.idx"):
        yield uri
        return
    with open_binary(f"{uri}.idx") as file:
        starts = np.frombuffer(file.read(), _OFFSET).tolist()
    prefix = f"{sample_key(sample_id)}.".encode()
    with (
        open_fetcher(uri, uri) as fetcher,
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


def _owner(dataset: Any, uri: str, sample_id: str, partitions: Iterable[str]) -> str | None:
    from mm_assets.formats.lance import Location
    from mm_assets.formats.lance.reader_writer import lance_options
    from mm_assets.formats.lance.records import PartitionRecord, PartitionRecords
    from mm_assets.formats.lance.snapshot import Snapshot

    snapshot = Snapshot(dataset)
    records = PartitionRecords(Location(uri, lance_options(uri, None)))

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


def find_in_uris(kind: str, query: SampleQuery) -> Mapping[str | None, Rows]:
    """Return rows of a sample by partition, by the reader of a format; none of a missing output."""
    uris = {name: query.uri_of(name) for name in query.partitions}
    return {
        name: _projected(reader_for(kind, uri), uri, query.sample_id) if exists(uri) else []
        for name, uri in uris.items()
    }
