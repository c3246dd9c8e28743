"""Accounting records of all formats: the table `ACCOUNTED`, with one `AccountedFormat` for each.

An entry has the canonical reader of a format, the checks of files beside the rows, the lookup of a sample,
and for Lance the checks of the table that all partitions share. `mm_assets.accounting.canonical`
describes the fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

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
from mm_assets.accounting.lookup import find_in_parquet, find_in_tars, find_in_uris, in_lance
from mm_assets.accounting.survey import is_same_type
from mm_assets.formats.names import DOCUMENT_OPTIONS, format_of
from mm_assets.formats.webdataset import VIRTUAL_SCHEMES
from mm_assets.model.schema import unify_schemas
from mm_assets.storage.files import StorageOptions, filesystem, join, size_of


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


_END_BLOCKS = 1024  # bytes; of a tar


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
    if unknown := nbytes - offsets[-1] - _END_BLOCKS:
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
