"""Accounting records of all formats: the table `ACCOUNTED`, with one `AccountedFormat` for each.

An entry has the canonical reader of a format, the checks of files beside the rows, the lookup of a sample,
and for Lance the checks of the table that all partitions share. `mm_assets.accounting.canonical`
describes the fields.

A lookup finds the rows of one sample without reading others: `find_in_parquet`, `find_in_tars`, `in_lance`,
and `in_accounts` its lost items.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting import ITEMS_SCHEMA
from mm_assets.accounting.canonical import (
    AccountedFormat,
    CanonicalLocation,
    Derived,
    OutputProblems,
    RowPart,
    Rows,
    SampleQuery,
    TableAccount,
)
from mm_assets.accounting.canonical.documents import raw_parts
from mm_assets.accounting.canonical.tables import (
    arrow_cache_parts,
    cache_problems,
    derive_cache,
    lance_parts,
    parquet_parts,
)
from mm_assets.accounting.canonical.tar import (
    FOLDER_FILES,
    derive_tar,
    folder_problems,
    has_index,
    is_native_json_lines,
    is_native_tar,
    jsonl_parts,
    mds_parts,
    tar_files,
    tar_offsets,
    tar_parts,
)
from mm_assets.accounting.survey import is_same_type
from mm_assets.formats.materialize import Fetcher, open_fetcher
from mm_assets.formats.names import DOCUMENT_OPTIONS, format_of, sample_key
from mm_assets.formats.parquet import SHARD, UNREADABLE, parquet_file, possible_groups
from mm_assets.formats.partitions import Partition, partition_name
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import reader_for
from mm_assets.formats.tar import BLOCK, END_BLOCKS
from mm_assets.formats.webdataset import VIRTUAL_SCHEMES
from mm_assets.model.errors import Fault
from mm_assets.model.schema import unify_schemas
from mm_assets.storage.errors import is_store_failure, located
from mm_assets.storage.files import StorageOptions, exists, filesystem, join, open_binary, size_of
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


def _arrow_cache_parts(source: CanonicalLocation) -> Iterator[RowPart]:
    return arrow_cache_parts(str(source.uri), source.options)


def _files(uri: str, options: StorageOptions | None) -> list[str]:
    fs, path = filesystem(uri, options)
    fs.invalidate_cache()
    names = (str(name).rstrip("/").rpartition("/")[2] for name in fs.ls(path, detail=False))
    return [join(uri, name) for name in sorted(names) if not name.startswith(".")]


ACCOUNTED_ARROW_CACHE = AccountedFormat(
    library="pyarrow.ipc.RecordBatchFileReader",
    parts=_arrow_cache_parts,
    digest=derive_cache,
    examine=lambda uri, found: OutputProblems(tuple(cache_problems(uri, found))),
    files=_files,
)


def _jsonl_parts(source: CanonicalLocation) -> Iterator[RowPart]:
    return jsonl_parts(str(source.uri), lambda: raw_parts(source), source.options)


ACCOUNTED_JSONL = AccountedFormat(
    library="json.loads, tarfile.TarFile",
    parts=_jsonl_parts,
    states_types=lambda source: not source.uri or is_native_json_lines(source.uri, source.options),
    is_ours=is_native_json_lines,
)


def _lance_parts(source: CanonicalLocation) -> Iterator[RowPart]:
    return lance_parts(str(source.uri), source.partition, source.options)


def _partitions(uri: str) -> Collection[str]:
    from mm_assets.formats.lance.reader_writer import InterleavedLanceWriter

    return InterleavedLanceWriter(uri).partition_stats() or ()


def _suspects(uri: str, schemas: Mapping[str, pa.Schema]) -> dict[str, Counter[str]]:
    """Return the shards of a table that have problems, with orphan rows by sample id.

    A shard has problems if one of its columns is missing or narrower, or if it has values in a column that is
    not its own. Orphan rows count with the shard that has the sample id, else with the first.
    """
    from mm_assets.formats.lance.reader_writer import InterleavedLanceWriter

    writer = InterleavedLanceWriter(uri)
    columns = writer.table_columns()
    if columns is None:
        return {}
    distinct = {id(schema): schema for schema in schemas.values()}
    held = {number for number, schema in distinct.items() if _holds(columns, schema)}
    suspects: dict[str, Counter[str]] = {
        key: Counter() for key, schema in schemas.items() if id(schema) not in held
    }
    if foreign := sorted(set(columns.names).difference(*(schema.names for schema in distinct.values()))):
        suspects |= {key: Counter() for key in writer.partitions_with_values(foreign, list(schemas))}
    for orphan in writer.orphan_rows():
        key = orphan.partition if orphan.partition in schemas else min(schemas)
        suspects.setdefault(key, Counter())[orphan.sample_id] += orphan.rows
    return suspects


def _holds(columns: pa.Schema, schema: pa.Schema) -> bool:
    """Return whether a table with these columns can hold a shard's: each is there, in no narrower type."""
    united = unify_schemas([columns, schema])
    required = [field.name for field in schema if not pa.types.is_null(field.type)]
    return all(
        name in columns.names and is_same_type(columns.field(name), united.field(name)) for name in required
    )


ACCOUNTED_LANCE = AccountedFormat(
    library="lance.LanceDataset.scanner",
    parts=_lance_parts,
    states_types=lambda _: False,  # they depend on the other rows of the table, too
    find_sample=lambda query: in_lance(query.folder, query.sample_id, query.partitions),
    finds_partitions=True,
    table=TableAccount(_partitions, _suspects),
)


_PREFIX = "sample_id_prefix"  # the only option that applies to files with a row per item


def _parquet_parts(source: CanonicalLocation) -> Iterator[RowPart]:
    has_prefixes = bool(source.layout.get(_PREFIX))
    return parquet_parts(str(source.uri), lambda: raw_parts(source), has_prefixes, source.options)


def _is_ours(file: str) -> bool:
    from mm_assets.formats.parquet.reader_writer import OURS, rows_of

    return rows_of(file) == OURS


def _options_for(file: str) -> tuple[Collection[str], str]:
    from mm_assets.formats.parquet.reader_writer import DOCUMENTS, rows_of

    rows = rows_of(file)
    return (DOCUMENT_OPTIONS if rows == DOCUMENTS else (_PREFIX,)), rows


ACCOUNTED_PARQUET = AccountedFormat(
    library="pyarrow.parquet.ParquetFile",
    parts=_parquet_parts,
    find_sample=find_in_parquet,
    finds_partitions=True,
    is_ours=_is_ours,
    options_for=_options_for,
)


def _webdataset_parts(source: CanonicalLocation) -> Iterator[RowPart]:
    # What could not be made has no rows in such a tar: our reader says why.
    if str(source.uri).startswith(VIRTUAL_SCHEMES):
        return raw_parts(source)
    return tar_parts(str(source.uri), lambda: raw_parts(source), source.options)


def _states_types(source: CanonicalLocation) -> bool:
    """Return whether the tar is ours; the types of a raw tar are inferred from its values."""
    return not source.uri or is_native_tar(source.uri, source.options)


def _examine(uri: str, found: Derived) -> OutputProblems:
    """Check the files beside a tar from which clients know its samples."""
    offsets = found.offsets or tar_offsets(uri)
    nbytes = size_of(uri) if found.nbytes is None else found.nbytes
    if unknown := nbytes - offsets[-1] - END_BLOCKS:
        return OutputProblems((f"{uri}: {unknown} bytes belong to no sample",))
    if not has_index(uri, offsets):  # the tar or its index has changed
        return OutputProblems((f"{uri}.idx: not where the samples of the tar begin and end",))
    return OutputProblems(beside=tuple(folder_problems(uri, found.samples, nbytes)))


ACCOUNTED_WEBDATASET = AccountedFormat(
    library="webdataset.tariterators",
    parts=_webdataset_parts,
    states_types=_states_types,
    digest=derive_tar,
    examine=_examine,
    find_sample=find_in_tars,
    is_ours=is_native_tar,
    files=lambda uri, _: tar_files(uri),
    folder_files=FOLDER_FILES,
)


def _mds_parts(source: CanonicalLocation) -> Iterator[RowPart]:
    return mds_parts(str(source.uri), source.options)


ACCOUNTED_MDS = AccountedFormat(library="struct, json.loads", parts=_mds_parts)


ACCOUNTED: Mapping[str, AccountedFormat] = {
    "parquet": ACCOUNTED_PARQUET,
    "webdataset": ACCOUNTED_WEBDATASET,
    "lance": ACCOUNTED_LANCE,
    "arrow_cache": ACCOUNTED_ARROW_CACHE,
    "jsonl": ACCOUNTED_JSONL,
    "mds": ACCOUNTED_MDS,
}


def accounted_format(kind: str) -> AccountedFormat:
    """Return the accounting record of a format.

    Raises:
        ValueError: for an unknown format.
    """
    return ACCOUNTED[format_of(kind).name]


def find_sample(kind: str, query: SampleQuery) -> Mapping[str | None, Rows]:
    """Return rows of a sample in an output of a format, by partition; no image is read.

    Without a lookup of its own the format's reader finds them.
    """
    find = accounted_format(kind).find_sample
    return find_in_uris(kind, query) if find is None else find(query)
