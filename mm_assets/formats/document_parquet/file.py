"""Open Parquet file of documents: its rows in batches, with or without image bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.document_parquet.layout import BYTES, DocumentLayout, ItemColumn, document_layout
from mm_assets.formats.document_parquet.unpacking import Reopen, RowSizes, WrittenOut, refuse_blown_up
from mm_assets.formats.parquet_file import read_batches, rows_within
from mm_assets.formats.parquet_types import cast, schema_with_enums
from mm_assets.formats.webdataset.layout import MAX_FIELDS, RawLayout
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.notices import warn_user

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
        images = (
            self.layout.images
            if self.layout.images is not None and self.layout.images.name in names
            else None
        )
        blobs = None if images is None else self._bytes_of(images)
        columns = list(names)
        if images is not None and blobs is not None and most_images is None and images.value.num_fields > 1:
            columns = [
                *(name for name in names if name != images.name),
                *(leaf for leaf in self._by_name[images.name] if leaf != blobs),
            ]
        leaves = {leaf for column in columns for leaf in self._by_name.get(column, ())}
        leaf_indices = [at for at, leaf in enumerate(self._leaves) if leaf in leaves]
        most_values = {
            at: most_images for at in leaf_indices if most_images is not None and self._leaves[at] == blobs
        }
        first = 0
        written = WrittenOut(self._file, self.nbytes, self.name, self._reopen)
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
        if not images.has(BYTES):
            return self._by_name[images.name][0] if not images.is_name else None
        found = [leaf for leaf in self._by_name[images.name] if leaf.endswith(f".{BYTES}")]
        return min(found, key=lambda leaf: leaf.count("."), default=None)
