"""Interleaved Parquet: one row per item, row groups of whole samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.batching import cut_by_bytes
from mm_assets.formats.listing import Paths
from mm_assets.formats.parquet_source import open_source
from mm_assets.formats.parquet_types import REFUSALS, refused_column, stored_schema
from mm_assets.formats.partitions import Partition, ref_path
from mm_assets.formats.raw_files import PARQUET_SUFFIXES
from mm_assets.formats.reader import FileSource, InterleavedReader
from mm_assets.formats.sample_ids import SampleIds
from mm_assets.formats.storage import StagedFile, StorageOptions
from mm_assets.formats.webdataset.layout import IMAGES, MAX_MEMBER_BYTES, TEXTS, RawLayout
from mm_assets.formats.writer import InterleavedWriter, Sink
from mm_assets.interleaved.nested_types import filled_column

__all__ = ["InterleavedParquetReader", "InterleavedParquetWriter"]

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
        relative_to: str | None = None,
        quarantine_errors: bool = False,
        max_member_bytes: int = MAX_MEMBER_BYTES,
        taken_ids: Collection[str] = (),
        **others: Any,
    ) -> None:
        super().__init__(file_paths, **others)
        self.layout = RawLayout(
            sample_id_field=sample_id_field,
            sample_id_prefix=sample_id_prefix,
            texts_field=texts_field,
            images_field=images_field,
        )
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

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return ParquetSink(self.uri_of(partition), schema, partition, self.storage_options)


class ParquetSink(Sink):
    """One Parquet file under a temporary name until it is published."""

    def __init__(self, uri: str, schema: pa.Schema, partition: str, options: StorageOptions | None) -> None:
        self._schema = schema = stored_schema(schema, partition)
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
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _leaf_paths(f"{path}.list.element", type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _leaf_paths(path, type_.storage_type)
    return [path]
