"""Open Parquet file of documents: its rows in batches, with or without image bytes, in bounded memory.

A Parquet dictionary stores a value once that any number of rows may have, so a small file can be huge in
memory. Files that unpack to far more than their size are refused (`refuse_blown_up`, `WrittenOut`), and rows
are read by their sizes in memory (`RowSizes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.formats.batching import Sizes, row_bytes
from mm_assets.formats.parquet import (
    ROWS_AT_ONCE,
    cast,
    checked,
    read_batches,
    rows_within,
    schema_with_enums,
)
from mm_assets.formats.parquet.document_layout import BYTES, DocumentLayout, ItemColumn, document_layout
from mm_assets.formats.tar.spool import unpacked_limit
from mm_assets.formats.webdataset import MAX_FIELDS, RawLayout
from mm_assets.model.errors import ShardError, warn_user

MAX_ROW_BYTES = 1 << 30  # a row is held in memory as a whole
_MAX_PACKED = 64 << 20  # bytes of a column in a row group; its dictionary is only inspected below that
_HELD = 64 << 20  # bytes of rows that may be in memory at a time
_VALUE = 8  # bytes that any value takes in memory, nulls included

Reopen = Callable[[list[str]], pq.ParquetFile]  # opens the file with these columns read as dictionaries


def refuse_blown_up(metadata: pq.FileMetaData, size: int) -> None:
    """Refuse a file whose footer declares more unpacked bytes than its size warrants.

    Raises:
        ValueError: It does, or a row is too large.
    """
    total = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        total += sum(column.total_uncompressed_size + _VALUE * column.num_values for column in columns)
        mean = group.total_byte_size // max(group.num_rows, 1)
        if mean > MAX_ROW_BYTES:
            raise ValueError(f"row group {number}: a row of {mean} bytes, at most {MAX_ROW_BYTES}")
    if total > unpacked_limit(size):
        raise ValueError(f"it unpacks to {total} bytes, more than {unpacked_limit(size)}")


class WrittenOut:
    """Guard on the bytes that one pass over a file writes out of its dictionaries, one for each pass.

    Args:
        file: the open file.
        size: returns its bytes; called once the content outgrows what any file may unpack to.
        name: the file in messages.
        reopen: opens it again.
    """

    def __init__(self, file: pq.ParquetFile, size: Callable[[], int], name: str, reopen: Reopen) -> None:
        self._file, self._size, self._name, self._reopen = file, size, name, reopen
        self._limit = unpacked_limit(0)
        self._nbytes: Counter[str] = Counter()  # by column
        self._sizes = RowSizes(file.metadata, name, reopen)
        leaves = range(len(file.schema))
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        self._leaves = [
            leaf for leaf in leaves if any(_has_dictionary(group.column(leaf)) for group in groups)
        ]
        self._columns = {file.schema.column(leaf).path.partition(".")[0] for leaf in self._leaves}
        self._columns |= {field.name for field in file.schema_arrow if pa.types.is_dictionary(field.type)}

    def rows(self, group: int, columns: Collection[str]) -> int | None:
        """Return how many rows of a row group to read at a time; None if any number takes little memory.

        Raises:
            ShardError: a row, or a column, is too large.
        """
        worst = 0
        for leaf in self._leaves:
            chunk, column = self._file.metadata.row_group(group).column(leaf), self._file.schema.column(leaf)
            if column.path.partition(".")[0] not in columns or not _has_dictionary(chunk):
                continue
            if self._is_beyond(chunk.total_uncompressed_size):
                self._refuse(column.path, *[chunk.total_uncompressed_size] * 2)
            if chunk.num_values * chunk.total_uncompressed_size <= _HELD:
                continue
            if column.max_repetition_level == 0:
                worst += self._longest(group, column.path)
            else:
                worst += self._sizes.of(group, [leaf], {})[1]
        return max(_HELD // worst, 1) if worst else None

    def count(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Count rows that have been read.

        Raises:
            ShardError: there are more bytes now than the file's size warrants.
        """
        for name in self._columns.intersection(rows.schema.names):
            column = rows.column(name)
            is_dictionary = pa.types.is_dictionary(column.type)
            self._nbytes[name] += (
                int(row_bytes(pa.table({name: column})).sum()) if is_dictionary else column.nbytes
            )
        if self._is_beyond(self._nbytes.total()):
            self._refuse(*self._nbytes.most_common(1)[0], self._nbytes.total())

    def _is_beyond(self, nbytes: int) -> bool:
        """Return whether it is more than the file's size warrants."""
        if nbytes > self._limit == unpacked_limit(0):
            self._limit = unpacked_limit(self._size())
        return nbytes > self._limit

    def _longest(self, group: int, path: str) -> int:
        """Return the bytes of the longest dictionary value of a flat column; only its first page is read."""
        file = self._reopen([path])
        try:
            batches = file.iter_batches(1, row_groups=[group], columns=[path], use_threads=False)
            column = checked(lambda: next(batches), self._name, file).column(0)
            while pa.types.is_struct(column.type):
                (column,) = column.flatten()
            values = column.dictionary if pa.types.is_dictionary(column.type) else column
            return pc.max(pc.binary_length(values)).as_py() or 0
        finally:
            file.close(force=True)

    def _refuse(self, column: str, nbytes: int, total: int) -> None:
        raise ShardError(
            f"{self._name}: column {column!r} unpacks to {nbytes} bytes or more, all with dictionaries to "
            f"{total}, at most {self._limit}; "
            "write the file without dictionaries if you trust it"
        )


def _has_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    return chunk.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and any(
        "DICTIONARY" in encoding for encoding in chunk.encodings
    )


class RowSizes:
    """Memory sizes of rows, by row group."""

    def __init__(self, metadata: pq.FileMetaData, name: str, reopen: Reopen) -> None:
        self._metadata, self._name, self._reopen = metadata, name, reopen
        self._measured_sizes: dict[tuple[int, int], Sizes | None] = {}

    def of(self, group: int, leaves: list[int], most: dict[int, int]) -> tuple[int, int]:
        """Return the mean and the largest row size of a row group in bytes, as far as they are known.

        Args:
            group: Number of the row group.
            leaves: Parquet's leaf columns to count.
            most: Largest number of values in a row, for columns where that is known.

        Raises:
            ShardError: A row is too large.
        """
        row_group = self._metadata.row_group(group)
        mean = largest = 0
        for leaf in leaves:
            chunk = row_group.column(leaf)
            sizes = self._unpacked(group, leaf, most.get(leaf, chunk.num_values))
            mean += (chunk.total_uncompressed_size if sizes is None else int(sizes.sum())) // max(
                row_group.num_rows, 1
            )
            if sizes is not None and len(sizes):
                largest += int(sizes.max())
                if sizes.max() > MAX_ROW_BYTES:
                    row = sum(self._metadata.row_group(before).num_rows for before in range(group)) + int(
                        sizes.argmax()
                    )
                    place = f"{self._name}: row {row}, column {chunk.path_in_schema!r}"
                    raise ShardError(f"{place}: {sizes.max()} bytes, at most {MAX_ROW_BYTES}")
        return mean, largest

    def _unpacked(self, group: int, leaf: int, most: int) -> Sizes | None:
        """Return the bytes of each row in one column.

        None if no row can be too large, or if the column itself is large.
        """
        chunk = self._metadata.row_group(group).column(leaf)
        size = chunk.total_uncompressed_size
        if chunk.physical_type != "BYTE_ARRAY" or most * size <= MAX_ROW_BYTES or size > _MAX_PACKED:
            return None
        if (group, leaf) not in self._measured_sizes:
            self._measured_sizes[group, leaf] = self._measured(group, chunk.path_in_schema)
        return self._measured_sizes[group, leaf]

    def _measured(self, group: int, path: str) -> Sizes:
        file = self._reopen([path])
        try:
            sizes = [
                row_bytes(pa.Table.from_batches([b]))
                for b in read_batches(file, group, [path], ROWS_AT_ONCE, self._name)
            ]
            return np.concatenate(sizes) if sizes else np.zeros(0, np.int64)
        finally:
            file.close(force=True)


_MAX_OVERSHOOT = 4  # times the requested bytes, should all rows be as large as the largest of their row group


class DocumentFile:
    """An open Parquet file with one document per row.

    Args:
        file: The file, opened by pyarrow.
        name: Its name in messages.
        size: Bytes of the file.
        raw: Names of the columns to read as texts, images and ids.
        read_kwargs: Further arguments of pyarrow's reads.
        reopen: Opens the file again.

    Raises:
        ShardError: The file has another layout, or would take more memory than its size warrants. The message
            is one line.
    """

    def __init__(
        self,
        file: pq.ParquetFile,
        name: str,
        size: int,
        raw: RawLayout,
        read_kwargs: Mapping[str, Any],
        reopen: Reopen,
    ) -> None:
        self.name = name
        self.nbytes = size
        self._file = file
        self._read_kwargs = {"use_threads": False, **read_kwargs}
        self._leaves = [file.schema.column(index).path for index in range(len(file.schema))]
        # Parquet's leaf columns, by each name that selects them: their own, or that of a parent.
        self._by_name: dict[str, list[str]] = {}
        for leaf in self._leaves:
            for prefix in accumulate(leaf.split("."), "{}.{}".format):
                self._by_name.setdefault(prefix, []).append(leaf)
        schema = schema_with_enums(file)
        self._texts = [
            text for text, field in zip(schema, file.schema_arrow, strict=True) if text.type != field.type
        ]
        try:
            self.layout: DocumentLayout = document_layout(schema, raw)
            refuse_blown_up(file.metadata, size)
            if len(self._leaves) > MAX_FIELDS:
                raise ValueError(
                    f"{len(self._leaves)} columns, those inside others included, at most {MAX_FIELDS}"
                )
        except ValueError as error:
            raise ShardError(f"{name}: {error}") from error
        if unread := self.layout.unread_images():
            warn_user(
                f"{name}: column {unread[0]!r} looks like images, and is passed through as a field; "
                "MM_IMAGES_FIELD names the column that is read"
            )
        self._sizes = RowSizes(file.metadata, name, reopen)
        self._reopen = reopen

    @property
    def names(self) -> list[str]:
        """All columns."""
        return list(self._file.schema_arrow.names)

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def read(
        self, names: Sequence[str], nbytes: int, most_images: int | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield some columns of all rows in batches, each with the number of its first row.

        Args:
            names: The columns.
            nbytes: Approximate bytes of a batch.
            most_images: Largest number of images in a row. None: not known yet; image bytes are then left
                out, if another column tells which images exist.
        """
        columns, blobs = list(names), set()
        for images in self.layout.image_columns:
            stored = self._bytes_of(images) if images.name in names else None
            if stored is None:
                continue
            blobs.add(stored)
            if most_images is None and images.value.num_fields > 1:
                columns = [
                    *(name for name in columns if name != images.name),
                    *(leaf for leaf in self._by_name[images.name] if leaf != stored),
                ]
        leaves = {leaf for column in columns for leaf in self._by_name.get(column, ())}
        leaf_indices = [at for at, leaf in enumerate(self._leaves) if leaf in leaves]
        most_values = {
            at: most_images for at in leaf_indices if most_images is not None and self._leaves[at] in blobs
        }
        first = 0
        written = WrittenOut(self._file, lambda: self.nbytes, self.name, self._reopen)
        for group in range(self._file.metadata.num_row_groups):
            mean, largest = self._sizes.of(group, leaf_indices, most_values)
            rows = min(rows_within(nbytes, mean), rows_within(_MAX_OVERSHOOT * nbytes, largest))
            for batch in read_batches(self._file, group, columns, rows, self.name, **self._read_kwargs):
                written.count(batch)
                batch = batch.select(list(names))  # Parquet also takes "x.y" for a field of "x"
                for field in self._texts:
                    if (index := batch.schema.get_field_index(field.name)) >= 0:
                        batch = batch.set_column(index, field, cast(batch.column(index), field.type))
                yield first, batch
                first += batch.num_rows

    def close(self) -> None:
        self._file.close(force=True)  # pyarrow does not close a remote file that we opened

    def _bytes_of(self, images: ItemColumn) -> str | None:
        """Return the leaf column with the bytes of the images, if there is one."""
        if images.is_name:  # or it has base64, which is read like a text
            return None
        if not images.has(BYTES):
            return self._by_name[images.name][0]
        found = [leaf for leaf in self._by_name[images.name] if leaf.endswith(f".{BYTES}")]
        return min(found, key=lambda leaf: leaf.count("."), default=None)
