"""Which source reads a Parquet file: told by its columns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pyarrow.parquet as pq

from mm_assets.formats.document_parquet.file import DocumentFile
from mm_assets.formats.document_parquet.layout import is_interleaved
from mm_assets.formats.document_parquet.source import DocumentSource
from mm_assets.formats.file_survey import FileSurvey
from mm_assets.formats.parquet_file import checked, open_parquet
from mm_assets.formats.parquet_items import PER_READ, ParquetSource
from mm_assets.formats.parquet_quarantine import QuarantiningParquetSource
from mm_assets.formats.parquet_types import VERSION
from mm_assets.formats.partitions import Partition, id_prefix
from mm_assets.formats.reader import FileSource
from mm_assets.formats.sample_ids import SampleIds
from mm_assets.formats.storage import StorageOptions, size_of
from mm_assets.formats.webdataset.layout import RawLayout

ROWS_PREFIX = "shard"  # of the number of a row, where that is its id: numbers start anew in each file

# What a row of a file is.
OURS, ITEMS, DOCUMENTS = (
    "its rows are items, which this project wrote",
    "its rows are items",
    "its rows are documents",
)


def rows_of(uri: str, options: StorageOptions | None = None) -> str:
    """What the rows of a file are, as far as its columns tell: ``OURS``, ``ITEMS`` or ``DOCUMENTS``. Raises
    as `open_source` does.
    """
    file = open_parquet(uri, uri, options, {})
    try:
        return _rows_of(file, uri)
    finally:
        file.close(force=True)


def open_source(
    uri: str,
    layout: RawLayout,
    path: str,
    partition: Partition,
    ids: SampleIds | None,
    max_member_bytes: int,
    options: StorageOptions | None = None,
    read_kwargs: Mapping[str, Any] | None = None,
) -> FileSource:
    """Open a file that has a row an item (columns sample_id, position and modality: ours, NeMo Curator's), or
    a row a document.

    Locators call it ``path``. With ``ids``, samples that cannot be used are quarantined. Raises `ShardError`
    in one line for any other file.
    """
    given = dict(read_kwargs or {})
    name = uri if ids is None else path
    per_read = {argument: given.pop(argument) for argument in PER_READ if argument in given}
    filters = given.pop("filters", None)
    file = open_parquet(uri, name, options, given)
    try:
        rows = _rows_of(file, name)
        prefix = id_prefix(layout.sample_id_prefix, partition.name, partition.files, uri)
        if rows != DOCUMENTS and ids is None:
            return ParquetSource(uri, file, {**per_read, "filters": filters}, prefix, options=options)
        if filters is not None:
            raise ValueError(
                f"{name}: read_kwargs: filters are for files with a row an item, and where nothing is set aside"
            )
        if rows != DOCUMENTS and ids is not None:
            return QuarantiningParquetSource(uri, file, path, ids, prefix, options)

        def reopen(dictionaries: list[str]) -> pq.ParquetFile:
            return open_parquet(
                uri, name, options, {**given, "metadata": file.metadata, "read_dictionary": dictionaries}
            )

        documents = DocumentFile(file, name, size_of(uri, options), layout, per_read, reopen)
        of_rows = id_prefix(ROWS_PREFIX, partition.name, partition.files, uri)
        return DocumentSource(uri, documents, path, max_member_bytes, ids, prefix, of_rows)
    except BaseException:
        file.close(force=True)
        raise


def survey_parquet(
    uri: str,
    layout: RawLayout,
    path: str,
    partition: Partition,
    *,
    max_member_bytes: int,
    options: StorageOptions | None = None,
) -> FileSurvey:
    """Survey one file without the bytes of its images; ``path`` is what messages and locators call it.

    No sample in it raises: what cannot be used is among the ``losses``. Raises as `open_source` does.
    """
    with closing(open_source(uri, layout, path, partition, SampleIds(), max_member_bytes, options)) as source:
        assert isinstance(source, QuarantiningParquetSource | DocumentSource)
        return source.survey()


def _rows_of(file: pq.ParquetFile, name: str) -> str:
    if not is_interleaved(checked(lambda: file.schema_arrow, name)):
        return DOCUMENTS
    return OURS if VERSION.encode() in (file.metadata.metadata or {}) else ITEMS
