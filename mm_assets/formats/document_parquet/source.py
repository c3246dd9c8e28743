"""Source of tables from one Parquet file of documents.

All rows are scanned first, then read with their images a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from mm_assets.formats.batching import cut_by_bytes
from mm_assets.formats.content_columns import CONTENT, content_columns
from mm_assets.formats.document_parquet.file import DocumentFile
from mm_assets.formats.document_parquet.rows import build_rows
from mm_assets.formats.document_parquet.scan import DocumentScan
from mm_assets.formats.file_survey import FileSurvey, SurveyedSample
from mm_assets.formats.parquet_rows import row_name
from mm_assets.formats.reader import FileSource
from mm_assets.formats.sample_ids import SampleIds
from mm_assets.formats.webdataset.declared_types import width
from mm_assets.formats.webdataset.layout import SOURCE
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.json_values import json_field
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA, canonical_schema

_READ_AT_ONCE = 32 << 20  # bytes, if batches have no limit
_ROW_OVERHEAD = 512  # bytes of a row besides its text, image and passthrough columns: locator, id, offsets


class DocumentSource(FileSource):
    """One file of documents: scanned when opened, without image bytes, and read when iterated.

    With ``ids``, documents that cannot be used are quarantined instead of raising. For the prefixes see
    `DocumentScan`. ``path`` is the file's path in locators.
    """

    def __init__(
        self,
        uri: str,
        file: DocumentFile,
        path: str,
        max_image_bytes: int,
        ids: SampleIds | None,
        id_prefix: str,
        row_prefix: str,
    ) -> None:
        self._file, self._path, self._max_image_bytes = file, path, max_image_bytes
        self._scan = DocumentScan(file, path, ids, id_prefix, row_prefix)
        passthrough = pa.schema(
            [*file.layout.passthrough, *([json_field(SOURCE)] if self._scan.has_source else [])]
        )
        lost = sum(loss.is_item for loss in self._scan.losses)
        kept = sum(
            items for items, is_sound in zip(self._scan.items, self._scan.is_sound, strict=True) if is_sound
        )
        super().__init__(uri, canonical_schema(pa.schema([*INTERLEAVED_SCHEMA, *passthrough])), kept + lost)
        self.losses = self._scan.losses
        self.notes |= {"nbytes": file.nbytes, "of_others": True}
        self.notes[CONTENT] = content_columns([*file.layout.passthrough, *file.layout.kept], {})

    def survey(self) -> FileSurvey:
        """Return the survey of the file: its samples, losses and columns."""
        scan = self._scan
        samples = zip(scan.ids, scan.items, scan.images, scan.is_sound, strict=True)
        return FileSurvey(
            samples=tuple(
                SurveyedSample(sample_id, row_name(row), None, None, items, images)
                for row, (sample_id, items, images, is_sound) in enumerate(samples)
                if is_sound
            ),
            losses=tuple(scan.losses),
            unresolved=tuple(scan.unresolved),
            declared=(pa.schema([f for f in self.schema if f.name not in INTERLEAVED_SCHEMA.names]),),
            declared_ints=scan.integers.tallies,
            content=self.notes[CONTENT],
            has_pairs=self._file.layout.has_pairs,
            members=self._file.rows,
            nbytes=self._file.nbytes,
        )

    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        return cut_by_bytes(self._tables(set(columns), max_bytes), max_bytes)

    def close(self) -> None:
        self._file.close()

    def _tables(self, columns: set[str], max_bytes: int | None) -> Iterator[pa.Table]:
        layout = self._file.layout
        schema = pa.schema([field for field in self.schema if field.name in columns])
        with_bytes = "binary_content" in columns
        names = [column.name for column in layout.items]
        names += [field.name for field in layout.passthrough if field.name in columns]
        names += [field.name for field in layout.kept if SOURCE in columns]
        limit = self._max_image_bytes if with_bytes else None
        budget = max_bytes or _READ_AT_ONCE
        row_bytes = _ROW_OVERHEAD + sum(
            width(field.type) for field in schema if field.name not in INTERLEAVED_SCHEMA.names
        )
        most_images = max(self._scan.images, default=0) if with_bytes else None
        for first, batch in self._file.read(names, budget // 8, most_images):
            for start, end in self._runs(first, first + batch.num_rows, budget // row_bytes):
                documents = batch.slice(start - first, end - start)
                table = build_rows(
                    documents, layout, schema, self._scan.ids[start:end], start, self._path, limit
                )
                expected = sum(self._scan.items[start:end])
                if table.num_rows != expected:  # the fields of a struct contradict each other
                    raise ShardError(
                        f"{self._file.name}: damaged Parquet data: rows {start} to {end}: "
                        f"{table.num_rows} items, not {expected}"
                    )
                yield table

    def _runs(self, first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
        """Yield runs (start, end) of usable rows from ``first`` up to ``last``.

        A run has at most ``most`` items, unless its only row has more.
        """
        start, filled = first, 0
        for row in range(first, last):
            items = self._scan.items[row]
            if start < row and (filled + items > most or not self._scan.is_sound[row]):
                yield start, row
                start, filled = row, 0
            if self._scan.is_sound[row]:
                filled += items
            else:
                start, filled = row + 1, 0
        if start < last:
            yield start, last
