"""Sources of Parquet files, chosen by the columns of each file: a row per item or a row per document."""

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

# Put in front of row numbers that are used as sample ids: they start at 0 in each file.
ROWS_PREFIX = "shard"

# The kinds of rows, as `mm-assets inspect` shows them.
OURS, ITEMS, DOCUMENTS = (
    "its rows are items, which this project wrote",
    "its rows are items",
    "its rows are documents",
)


def rows_of(uri: str, options: StorageOptions | None = None) -> str:
    """Return the kind of a file's rows as its columns tell: ``OURS``, ``ITEMS`` or ``DOCUMENTS``.

    Raises as `open_source` does.
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
    """Open a Parquet file with a row per item or a row per document.

    A file with the columns sample_id, position and modality has a row per item (ours, NeMo Curator's).

    Args:
        uri: path or URL.
        layout: the columns of documents.
        path: the file in locators, and in messages if ``ids`` are given.
        partition: the partition that the file belongs to.
        ids: the sample ids of the partition so far. With them, samples that cannot be used are quarantined;
            without (None) they raise.
        max_member_bytes: a larger image of a document is an error row.
        options: for the file system.
        read_kwargs: see `InterleavedParquetReader`.

    Raises:
        ShardError: the file is neither, in one line.
        ValueError: ``filters`` for a file with a row per document, or with ``ids``.
    """
    open_kwargs = dict(read_kwargs or {})
    name = uri if ids is None else path
    per_read = {argument: open_kwargs.pop(argument) for argument in PER_READ if argument in open_kwargs}
    filters = open_kwargs.pop("filters", None)
    file = open_parquet(uri, name, options, open_kwargs)
    try:
        rows = _rows_of(file, name)
        prefix = id_prefix(layout.sample_id_prefix, partition.name, partition.files, uri)
        if rows != DOCUMENTS and ids is None:
            return ParquetSource(uri, file, {**per_read, "filters": filters}, prefix, options=options)
        if filters is not None:
            raise ValueError(
                f"{name}: read_kwargs: filters are for files with a row an item, "
                "and for readers that quarantine nothing"
            )
        if rows != DOCUMENTS and ids is not None:
            return QuarantiningParquetSource(uri, file, path, ids, prefix, options)

        def reopen(dictionaries: list[str]) -> pq.ParquetFile:
            return open_parquet(
                uri,
                name,
                options,
                {**open_kwargs, "metadata": file.metadata, "read_dictionary": dictionaries},
            )

        documents = DocumentFile(file, name, size_of(uri, options), layout, per_read, reopen)
        row_id_prefix = id_prefix(ROWS_PREFIX, partition.name, partition.files, uri)
        return DocumentSource(uri, documents, path, max_member_bytes, ids, prefix, row_id_prefix)
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
    """Survey one file without the bytes of its images; ``path`` names it in messages and locators.

    No sample raises: samples that cannot be used are among the ``losses``. For the file itself, raises as
    `open_source` does.
    """
    with closing(open_source(uri, layout, path, partition, SampleIds(), max_member_bytes, options)) as source:
        assert isinstance(source, QuarantiningParquetSource | DocumentSource)
        return source.survey()


def _rows_of(file: pq.ParquetFile, name: str) -> str:
    if not is_interleaved(checked(lambda: file.schema_arrow, name)):
        return DOCUMENTS
    return OURS if VERSION.encode() in (file.metadata.metadata or {}) else ITEMS
