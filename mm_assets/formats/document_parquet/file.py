"""A Parquet file of documents, opened: its rows a few at a time, with or without the bytes of the images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.document_parquet.layout import BYTES, DocumentLayout, ItemColumn, document_layout
from mm_assets.formats.parquet_file import read_batches, rows_within
from mm_assets.formats.reader import ShardError
from mm_assets.formats.webdataset.layout import MAX_FIELDS, RawLayout
from mm_assets.formats.webdataset.spool import unpacked_limit

MAX_ROW_BYTES = 1 << 30  # a row is in memory as a whole


class DocumentFile:
    """Messages call the file ``name``. Raises `ShardError` in one line for a file of another layout, and for one that is no honest one."""

    def __init__(self, file: pq.ParquetFile, name: str, size: int, raw: RawLayout, read_kwargs: Mapping[str, Any]) -> None:
        self.name = name
        self._file = file
        self._read_kwargs = {"use_threads": False, **read_kwargs}
        self._leaves = [file.schema.column(index).path for index in range(len(file.schema))]
        try:
            self.layout: DocumentLayout = document_layout(file.schema_arrow, raw)
            _refuse_blown_up(file.metadata, size)
            if len(self._leaves) > MAX_FIELDS:
                raise ValueError(f"{len(self._leaves)} columns, those inside others included, at most {MAX_FIELDS}")
        except ValueError as error:
            raise ShardError(f"{name}: {error}") from error

    @property
    def names(self) -> list[str]:
        """All columns."""
        return list(self._file.schema_arrow.names)

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def read(self, names: Sequence[str], nbytes: int, with_bytes: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Some columns of all rows, about ``nbytes`` at a time, each time with the number of the first row.

        Without the bytes of the images (not ``with_bytes``), where another column tells which images there are.
        """
        images = self.layout.images
        blobs = None if with_bytes or images is None or images.name not in names else self._bytes_of(images)
        columns = list(names)
        if images is not None and blobs is not None:
            columns = [*(name for name in names if name != images.name), *(leaf for leaf in self._within(images.name) if leaf != blobs)]
        leaves = {leaf for column in columns for leaf in self._within(column)}
        wanted = [at for at, leaf in enumerate(self._leaves) if leaf in leaves]
        metadata = self._file.metadata
        first = 0
        for group in range(metadata.num_row_groups):
            facts = metadata.row_group(group)
            mean = sum(facts.column(at).total_uncompressed_size for at in wanted) // max(facts.num_rows, 1)
            for batch in read_batches(self._file, group, columns, rows_within(nbytes, mean), self.name, **self._read_kwargs):
                yield first, batch.select(list(names))  # Parquet takes "x.y" for a part of "x" as well
                first += batch.num_rows

    def close(self) -> None:
        self._file.close(force=True)  # a remote file was opened here, not by pyarrow

    def _within(self, name: str) -> list[str]:
        """The columns as Parquet has them that a column is made of."""
        return [leaf for leaf in self._leaves if leaf == name or leaf.startswith(f"{name}.")]

    def _bytes_of(self, images: ItemColumn) -> str | None:
        """The bytes of the images among these, if others beside them tell which images there are."""
        if not images.has(BYTES) or images.value.num_fields < 2:
            return None
        found = [leaf for leaf in self._within(images.name) if leaf.endswith(f".{BYTES}")]
        return min(found, key=lambda leaf: leaf.count("."), default=None)


def _refuse_blown_up(metadata: pq.FileMetaData, size: int) -> None:
    """A few bytes may unpack to any number of them."""
    total = 0
    for number in range(metadata.num_row_groups):
        facts = metadata.row_group(number)
        total += facts.total_byte_size
        mean = facts.total_byte_size // max(facts.num_rows, 1)
        if mean > MAX_ROW_BYTES:
            raise ValueError(f"row group {number}: a row of {mean} bytes, at most {MAX_ROW_BYTES}")
    if total > unpacked_limit(size):
        raise ValueError(f"it unpacks to {total} bytes, more than {unpacked_limit(size)}")
