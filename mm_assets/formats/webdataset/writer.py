"""Writer of interleaved batches as WebDataset tars that open unmodified in every client."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa

from mm_assets.formats.storage import StagedFile, StorageOptions, remove
from mm_assets.formats.tar.writer import TarWriter
from mm_assets.formats.webdataset.client_indexes import TarPartitionStats, hf_type, parse_pairs, tar_idx
from mm_assets.formats.webdataset.encode import SampleEncoder
from mm_assets.formats.webdataset.tar_folder import TarFolder
from mm_assets.formats.writer import InterleavedWriter, PartitionReport, Sink

__all__ = ["InterleavedWebdatasetWriter"]


class InterleavedWebdatasetWriter(InterleavedWriter):
    """Writer of one tar per partition into a folder, with the index files of all clients.

    If ``path`` ends in ``.tar`` it writes one bare tar instead. See `InterleavedWriter` for the arguments.
    Images that are in none of the six formats are stored inside the json, so that every image member of a tar
    can be decoded by its suffix.
    """

    suffix = ".tar"

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return TarSink(self.uri_of(partition), schema, self.is_single_file, self.storage_options)

    def finish(self, reports: Sequence[PartitionReport]) -> None:
        if not self.is_single_file:
            TarFolder(self.path, self.storage_options).finish()


class TarSink(Sink):
    """One tar under a temporary name until published."""

    def __init__(self, uri: str, schema: pa.Schema, is_bare: bool, options: StorageOptions | None) -> None:
        self._uri = uri
        self._is_bare = is_bare
        self._options = options
        self._encoder = SampleEncoder(schema)
        self._staged = StagedFile(uri, options)
        self._writer = TarWriter(self._staged.path)
        self._pairs: set[str] = set()

    def write(self, tables: Iterator[pa.Table]) -> None:
        for table in tables:
            for sample in self._encoder.encode(table):
                self._writer.write_group(sample.members)
                self._pairs.update(sample.pairs)

    def publish(self) -> tuple[str | None, int]:
        self._writer.close()
        # Clients fail on an empty tar, so none is published, as in a folder.
        if self._is_bare and self._writer.groups == 0:
            self._staged.discard()
            remove(self._uri, self._options)
            return None, 0
        if self._is_bare:
            return self._uri, self._staged.publish()
        folder, name = os.path.split(self._uri)
        columns = {field.name: hf_type(field) for field in self._encoder.extras}
        stats = TarPartitionStats(
            name, self._writer.groups, self._writer.bytes, parse_pairs(self._pairs), columns
        )
        TarFolder(folder, self._options).publish(self._staged.path, tar_idx(self._writer.offsets), stats)
        self._staged.discard()
        return (self._uri, stats.bytes) if stats.samples else (None, 0)

    def discard(self) -> None:
        self._writer.abort()
        self._staged.discard()
