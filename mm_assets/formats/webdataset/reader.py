"""Reader of tar shards (MINT-1T-style, image-text pairs, and our own) as interleaved batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mm_assets.formats.listing import Paths
from mm_assets.formats.partitions import Partition, id_prefix, ref_path
from mm_assets.formats.reader import FileSource, InterleavedReader
from mm_assets.formats.sample_ids import SampleIds
from mm_assets.formats.storage import StorageOptions, local_path
from mm_assets.formats.tar.suffixes import TAR_SUFFIXES
from mm_assets.formats.webdataset.layout import (
    DEFAULT_IMAGE_EXTENSIONS,
    DEFAULT_JSON_EXTENSIONS,
    IMAGES,
    MAX_MEMBER_BYTES,
    SOURCE,
    TEXTS,
    RawLayout,
    normal_extensions,
)
from mm_assets.formats.webdataset.source import WebdatasetSource
from mm_assets.formats.webdataset.tar_samples import TarSamples
from mm_assets.interleaved.schema import RESERVED_COLUMNS

__all__ = ["InterleavedWebdatasetReader"]


class InterleavedWebdatasetReader(InterleavedReader):
    """Reader of tar shards; see `InterleavedReader` for the arguments not listed here.

    Args:
        sample_id_field: Json field with the sample id. None: the json's ``sample_id`` string, else the
            member's path without its suffix.
        sample_id_prefix: ``"shard"`` puts the partition's name and a slash before each sample id, for ids
            that start anew in each shard.
        image_extensions: Suffixes (any case) of image members.
        json_extensions: Suffixes (any case) of the members that are samples.
        texts_field: Json field with the list of texts.
        images_field: Json field with the parallel list of images.
        image_member_field: Json field with the name of the sample's (multi-frame) image member.
        per_image_fields: Json lists with one value per image, which go to the image rows.
        per_text_fields: Json lists with one value per text, which go to the text rows.
        materialize: Read image bytes (default). False leaves only locators.
        relative_to: Folder or URL prefix. Locators below it are stored relative to it, so that no path of
            this machine leaks.
        quarantine_errors: Turn unreadable content (a bad json, a duplicate, the rest of a damaged tar) into
            losses of the stream, and read everything else. By default it raises.
        max_member_bytes: A larger image is not read; it becomes an error row.
        taken_ids: With ``quarantine_errors``, ids of samples in other partitions: a sample with one of them
            is a duplicate.
    """

    suffixes: tuple[str, ...] = TAR_SUFFIXES

    def __init__(
        self,
        file_paths: Paths,
        *,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        max_batch_bytes: int | None = None,
        fields: Sequence[str] | None = None,
        read_kwargs: Mapping[str, Any] | None = None,
        schema: pa.Schema | None = None,
        schema_overrides: Mapping[str, pa.DataType] | None = None,
        sample_id_field: str | None = None,
        sample_id_prefix: str | None = None,
        image_extensions: Sequence[str] = DEFAULT_IMAGE_EXTENSIONS,
        json_extensions: Sequence[str] = DEFAULT_JSON_EXTENSIONS,
        texts_field: str = TEXTS,
        images_field: str = IMAGES,
        image_member_field: str | None = None,
        per_image_fields: Sequence[str] = (),
        per_text_fields: Sequence[str] = (),
        materialize: bool = True,
        relative_to: str | None = None,
        quarantine_errors: bool = False,
        max_member_bytes: int = MAX_MEMBER_BYTES,
        taken_ids: Collection[str] = (),
        roots: Sequence[str] | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        spread = [*_names(per_image_fields), *_names(per_text_fields)]
        if reserved := sorted(set(spread) & {*RESERVED_COLUMNS, SOURCE}):
            raise ValueError(f"per-item fields become columns; {', '.join(reserved)} is a column of its own")
        super().__init__(
            file_paths,
            files_per_partition=files_per_partition,
            blocksize=blocksize,
            max_batch_bytes=max_batch_bytes,
            fields=fields,
            schema=schema,
            schema_overrides=schema_overrides,
            roots=roots,
            storage_options={**(storage_options or {}), **(read_kwargs or {})} or None,
        )
        self.layout = RawLayout(
            sample_id_field=sample_id_field,
            sample_id_prefix=sample_id_prefix,
            texts_field=texts_field,
            images_field=images_field,
            image_member_field=image_member_field,
            per_image_fields=_names(per_image_fields),
            per_text_fields=_names(per_text_fields),
            image_extensions=normal_extensions(_names(image_extensions)),
            json_extensions=normal_extensions(_names(json_extensions)),
        )
        self.read_bytes = materialize
        self.relative_to = local_path(relative_to).rstrip("/") if relative_to else None
        self.quarantine_errors = quarantine_errors
        self.max_member_bytes = max_member_bytes
        self.taken_ids = frozenset(taken_ids)

    def _opener(self, partition: Partition) -> Callable[[str], FileSource]:
        ids = SampleIds(self.taken_ids) if self.quarantine_errors else None
        return lambda uri: self._source(uri, partition, ids)

    def _open_file(self, uri: str, partition: Partition) -> FileSource:
        return self._opener(partition)(uri)

    def _source(self, uri: str, partition: Partition, ids: SampleIds | None) -> FileSource:
        return self._opened(uri, partition, ids)

    def _opened(
        self,
        uri: str,
        partition: Partition,
        ids: SampleIds | None,
        samples: Callable[..., TarSamples] | None = None,
    ) -> FileSource:
        return WebdatasetSource(
            uri,
            self.layout,
            ref_path(uri, self.relative_to),
            self.read_bytes,
            self.storage_options,
            self.max_member_bytes,
            ids,
            id_prefix(self.layout.sample_id_prefix, partition.name, partition.files, uri),
            samples,
        )


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one name, several, or none as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given or ())
