"""Reader and writer of interleaved Parquet: one row per item, row groups of whole samples.

The reader also reads third-party documents. `open_source` chooses by the columns of each file: a row per item
or a row per document (`DocumentSource`, which scans all rows first, then reads a few with their images).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from mm_assets.formats.batching import SampleIds, cut_by_bytes
from mm_assets.formats.document_layouts import described
from mm_assets.formats.image_places import ImagesElsewhere
from mm_assets.formats.materialize import reading_roots
from mm_assets.formats.names import PARQUET_SUFFIXES
from mm_assets.formats.parquet import (
    IMAGE_REF,
    IMAGE_REFS,
    REFUSALS,
    VERSION,
    checked,
    image_keys,
    open_parquet,
    refused_column,
    row_name,
    stored_schema,
    with_image_refs,
)
from mm_assets.formats.parquet.document_file import DocumentFile
from mm_assets.formats.parquet.document_layout import is_interleaved
from mm_assets.formats.parquet.document_rows import DocumentScan, build_rows
from mm_assets.formats.parquet.items import PER_READ, ParquetSource, QuarantiningParquetSource
from mm_assets.formats.partitions import Partition, id_prefix, ref_path
from mm_assets.formats.reader import FileSource, FileSurvey, InterleavedReader, SurveyedSample
from mm_assets.formats.reports import CONTENT, content_columns
from mm_assets.formats.reports import DOCUMENTS as LAYOUT_OF_DOCUMENTS
from mm_assets.formats.webdataset import IMAGES, MAX_MEMBER_BYTES, SOURCE, TEXTS, RawLayout
from mm_assets.formats.webdataset.rows import width
from mm_assets.formats.writer import InterleavedWriter, Sink
from mm_assets.model.digest import BLOBS
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import json_field
from mm_assets.model.nested_types import binary_views, filled_column, is_list
from mm_assets.model.samples import InterleavedBatch, StepResult
from mm_assets.model.schema import INTERLEAVED_SCHEMA, canonical_schema
from mm_assets.storage.files import StagedFile, StorageOptions, size_of
from mm_assets.storage.listing import Paths

__all__ = ["InterleavedParquetReader", "InterleavedParquetWriter"]


_ROW_OVERHEAD = 512  # bytes of a row besides its text, image and passthrough columns: locator, id, offsets
_BYTES_READ_AT_ONCE = 32 << 20  # bytes, if batches have no limit


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
        elsewhere: ImagesElsewhere | None = None,
    ) -> None:
        self._file, self._path, self._max_image_bytes = file, path, max_image_bytes
        self._elsewhere = elsewhere
        self._scan = DocumentScan(file, path, ids, id_prefix, row_prefix, elsewhere)
        passthrough = pa.schema(
            [
                *file.layout.passthrough,
                *(tally.field(name) for name, tally in self._scan.tallies.items()),
                *([json_field(SOURCE)] if self._scan.has_source else []),
            ]
        )
        lost = sum(loss.is_item for loss in self._scan.losses)
        kept = sum(
            items for items, is_sound in zip(self._scan.items, self._scan.is_sound, strict=True) if is_sound
        )
        super().__init__(uri, canonical_schema(pa.schema([*INTERLEAVED_SCHEMA, *passthrough])), kept + lost)
        self.losses = self._scan.losses
        self.notes |= {"nbytes": file.nbytes, "of_others": True}
        if (unfolds := file.layout.unfolds) is not None:
            self.notes[LAYOUT_OF_DOCUMENTS] = described(unfolds.layout, self._scan.unread)
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
            documents="" if self._file.layout.unfolds is None else self._file.layout.unfolds.layout.name,
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
        names = list(layout.content)
        names += [field.name for field in layout.passthrough if field.name in columns]
        names += [field.name for field in layout.kept if SOURCE in columns]
        limit = self._max_image_bytes if with_bytes else None
        budget = max_bytes or _BYTES_READ_AT_ONCE
        row_bytes = _ROW_OVERHEAD + sum(
            width(field.type) for field in schema if field.name not in INTERLEAVED_SCHEMA.names
        )
        most_images = max(self._scan.images, default=0) if with_bytes else None
        for first, batch in self._file.read(names, budget // 8, most_images):
            for start, end in self._runs(first, first + batch.num_rows, budget // row_bytes):
                documents = batch.slice(start - first, end - start)
                table = build_rows(
                    documents,
                    layout,
                    schema,
                    self._scan.ids[start:end],
                    start,
                    self._path,
                    limit,
                    self._elsewhere,
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
        elsewhere = ImagesElsewhere.of(layout.images_from, uri, path, max_member_bytes, options)
        return DocumentSource(uri, documents, path, max_member_bytes, ids, prefix, row_id_prefix, elsewhere)
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
) -> FileSurvey:
    """Survey one file without the bytes of its images; ``path`` names it in messages and locators.

    No sample raises: samples that cannot be used are among the ``losses``. For the file itself, raises as
    `open_source` does.
    """
    with closing(open_source(uri, layout, path, partition, SampleIds(), max_member_bytes, None)) as source:
        assert isinstance(source, QuarantiningParquetSource | DocumentSource)
        return source.survey()


def _rows_of(file: pq.ParquetFile, name: str) -> str:
    if not is_interleaved(checked(lambda: file.schema_arrow, name)):
        return DOCUMENTS
    return OURS if VERSION.encode() in (file.metadata.metadata or {}) else ITEMS


ROW_GROUP_BYTES = 16 << 20  # reading one sample reads its row group; 16 MiB balances that against scan speed


class InterleavedParquetReader(InterleavedReader):
    """Reader of Parquet files with a row per item, as we write them, or a row per document.

    Args:
        file_paths: see `InterleavedReader`.
        sample_id_field: for documents, the column with the sample id. None: the text column ``sample_id``,
            else the partition's name and the row's number.
        sample_id_prefix: ``"shard"`` puts the partition's name and a slash in front of each sample id.
        texts_field: for documents, the column with the list of texts.
        images_field: for documents, the column with the parallel list of images; without it a column
            ``image`` may hold one image per document.
        document_layout: for documents, their layout; see `InterleavedWebdatasetReader`.
        images_from: for documents, folders and tars, quoted and separated as in a shell, with the images that
            are only named, by name or by URL.
        declared_digests: for documents, which images are compared with a sha256 or md5 beside them; see
            `mm_assets.model.digest.declared_digests`.
        relative_to: folder or URL prefix; locators of documents below it are stored relative to it, so that
            no path of this machine leaks.
        quarantine_errors: samples that cannot be used become losses of the stream, and everything else is
            read; by default they raise.
        max_member_bytes: for documents, a larger image is an error row.
        taken_ids: with ``quarantine_errors``, sample ids of other partitions: here they are duplicates.
        others: arguments of `InterleavedReader`. Its ``read_kwargs`` are those of
            `pyarrow.parquet.read_table`: how the file is opened (memory_map, buffer_size, pre_buffer …),
            use_threads, and, with a row per item, filters (rows that do not pass are left out, also inside a
            sample).
    """

    suffixes = PARQUET_SUFFIXES

    def __init__(
        self,
        file_paths: Paths,
        *,
        sample_id_field: str | None = None,
        sample_id_prefix: str | None = None,
        texts_field: str = TEXTS,
        images_field: str = IMAGES,
        document_layout: str | None = None,
        images_from: str = "",
        declared_digests: str | None = None,
        relative_to: str | None = None,
        quarantine_errors: bool = False,
        max_member_bytes: int = MAX_MEMBER_BYTES,
        taken_ids: Collection[str] = (),
        **others: Any,
    ) -> None:
        others["roots"] = reading_roots(others.get("roots"), relative_to, images_from)
        super().__init__(file_paths, **{"materialize": bool(images_from), **others})
        self.layout = RawLayout(
            sample_id_field=sample_id_field,
            sample_id_prefix=sample_id_prefix,
            texts_field=texts_field,
            images_field=images_field,
            document_layout=document_layout,
            images_from=images_from,
            declared_digests=declared_digests,
        )
        self.images_from = images_from
        # Found by URL, they may be what img2dataset has stored of it.
        self.declared_digests = declared_digests or ("off" if images_from else None)
        self.relative_to = relative_to
        self.quarantine_errors = quarantine_errors
        self.max_member_bytes = max_member_bytes
        self.taken_ids = frozenset(taken_ids)

    def _opener(self, partition: Partition) -> Callable[[str], FileSource]:
        ids = SampleIds(self.taken_ids) if self.quarantine_errors else None
        return lambda uri: open_source(
            uri,
            self.layout,
            ref_path(uri, self.relative_to),
            partition,
            ids,
            self.max_member_bytes,
            self.storage_options,
            self.read_kwargs,
        )

    def _open_file(self, uri: str, partition: Partition) -> FileSource:
        return self._opener(partition)(uri)


class InterleavedParquetWriter(InterleavedWriter):
    """Writer of interleaved Parquet: image bytes uncompressed, text compressed, row groups bounded by bytes.

    ``path`` is a folder (one file per partition) or, ending in ``.parquet``, one file. See
    `InterleavedWriter`.
    """

    suffix = ".parquet"
    images: ImagesOfSource | None = None

    def referring_to(self, images: ImagesOfSource) -> Self:
        """Return the writer that leaves out these images, and refers to them."""
        writer = copy.copy(self)
        writer.images = images
        return writer

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return ParquetSink(self.uri_of(partition), schema, partition, self.storage_options, self.images)


class ImagesOfSource:
    """Step that changes nothing: the images of the file that rows are from, which others may refer to.

    Args:
        path: the file below the folder that holds its own.

    Attributes:
        referred: number of images that were left out.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._digests: dict[str, str] = {}
        self.referred = 0

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        self._digests.update((key, digest) for _, key, _, digest in _images_of(batch.data))
        return StepResult(batch)

    def left_out(self, rows: pa.Table) -> pa.Table:
        """Return rows with references in the place of images that are as they were in the source."""
        refs: list[dict[str, object] | None] = [None] * rows.num_rows
        for row, key, size, digest in _images_of(rows):
            if self._digests.get(key) == digest:
                refs[row] = {"path": self._path, "bytes": size, "digest": digest}
        column = pa.array(refs, IMAGE_REF)
        self.referred += len(column) - column.null_count
        at = rows.schema.get_field_index(BLOBS)
        kept = pc.if_else(column.is_null(), rows.column(at), pa.scalar(None, rows.schema.field(at).type))
        return rows.set_column(at, rows.schema.field(at), kept).append_column(IMAGE_REFS, column)


def _images_of(rows: pa.Table) -> Iterator[tuple[int, str, int, str]]:
    """Yield row number, key, bytes and digest of each image that has bytes."""
    views = chain.from_iterable(map(binary_views, rows.column(BLOBS).chunks))
    for row, (key, view) in enumerate(zip(image_keys(rows).to_pylist(), views, strict=True)):
        if key is not None and view is not None:
            yield row, key, len(view), xxhash.xxh3_128_hexdigest(view)


class ParquetSink(Sink):
    """One Parquet file under a temporary name until it is published."""

    def __init__(
        self,
        uri: str,
        schema: pa.Schema,
        partition: str,
        options: StorageOptions | None,
        images: ImagesOfSource | None = None,
    ) -> None:
        schema = stored_schema(schema, partition)
        self._images = images
        self._schema = schema = schema if images is None else with_image_refs(schema)
        self._staged = StagedFile(uri, options)
        try:
            self._writer = _open_writer(self._staged.path, schema)
        except BaseException as error:
            self._staged.discard()
            if isinstance(error, REFUSALS) and (refused := refused_column(schema.empty_table())):
                raise ValueError(f"{refused}{error}") from error
            raise

    def write(self, tables: Iterator[pa.Table]) -> None:
        for group in cut_by_bytes(tables, ROW_GROUP_BYTES):
            group = pa.Table.from_arrays(list(map(filled_column, group.columns)), schema=group.schema)
            if self._images is not None:
                group = self._images.left_out(group)
            try:
                self._writer.write_table(group.cast(self._schema), row_group_size=group.num_rows)
            except pa.ArrowInvalid as error:
                raise ValueError(f"{refused_column(group)}{error}") from error

    def publish(self) -> tuple[str | None, int]:
        self._writer.close()
        return self._staged.uri, self._staged.publish()

    def discard(self) -> None:
        # A full disk refuses the footer too; the error that led here is the one to report.
        with suppress(Exception):
            self._writer.close()
        self._staged.discard()


def _open_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        schema,
        version="2.6",
        compression={name: "none" if name == "binary_content" else "zstd" for name in _leaves(schema)},
        use_dictionary=[name for name in ("modality", "content_type") if name in schema.names],
        write_statistics=["sample_id", "position", "modality"],
        # Pages are cut between write batches only. With the default of 1,024 rows, a page of images would
        # cost every reader that much memory.
        write_batch_size=16,
        bloom_filter_options={"sample_id": {"ndv": 4096, "fpp": 0.01}},
    )


def _leaves(schema: pa.Schema) -> list[str]:
    """Return column paths as Parquet names them: top-level names set the compression of flat columns only."""
    return [leaf for field in schema for leaf in _leaf_paths(field.name, field.type)]


def _leaf_paths(path: str, type_: pa.DataType) -> list[str]:
    if pa.types.is_struct(type_):
        return [leaf for child in type_ for leaf in _leaf_paths(f"{path}.{child.name}", child.type)]
    if pa.types.is_map(type_):
        entries = f"{path}.key_value"
        return [f"{entries}.key", *_leaf_paths(f"{entries}.value", type_.item_type)]
    if is_list(type_) or pa.types.is_fixed_size_list(type_):
        return _leaf_paths(f"{path}.list.element", type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _leaf_paths(path, type_.storage_type)
    return [path]
