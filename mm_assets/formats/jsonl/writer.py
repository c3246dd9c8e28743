"""Writer of JSON lines, with their images in a tar beside them."""

from __future__ import annotations

import gzip
import os
import posixpath
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import xxhash

from mm_assets.formats.jsonl.layout import IMAGES_TAR, WRITTEN, images_name, lines_of, stem_of
from mm_assets.formats.storage import (
    StagedFile,
    StorageOptions,
    filesystem,
    is_remote,
    join,
    local_path,
    remove,
    staged,
)
from mm_assets.formats.tar.spool import unpacked_limit
from mm_assets.formats.tar.writer import TarWriter
from mm_assets.formats.webdataset.encode import SampleEncoder
from mm_assets.formats.writer import InterleavedWriter, PartitionReport, Sink
from mm_assets.interleaved.json_values import dumps

__all__ = ["InterleavedJsonlWriter"]

_COPIED = 1 << 20
_IMAGES = "images"  # entry of a report: the tar that the lines name
_LEVEL = 6  # of gzip: higher ones take far longer and save a few percent
_STORED = 0  # for text that compresses so well that readers would take it for a decompression bomb


class InterleavedJsonlWriter(InterleavedWriter):
    """Writes ``<partition>.jsonl.gz`` and, where there are images, a tar of them into a folder.

    A ``path`` that ends in ``.jsonl.gz`` is the one file to write. See `InterleavedWriter` for the arguments.
    The lines are published last and name their tar, whose name changes with its bytes: a writer killed in
    between leaves the previous version. The same input makes the same bytes.
    """

    suffix = WRITTEN

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return JsonlSink(self.uri_of(partition), schema, self.storage_options)

    def finish(self, reports: Sequence[PartitionReport]) -> None:
        """Remove the tars of previous versions, and of writers that were killed."""
        fs, folder = filesystem(self.folder, self.storage_options)
        fs.invalidate_cache()
        if not reports or not fs.exists(folder):
            return
        stems = {posixpath.basename(stem_of(self.uri_of(each.partition))): each for each in reports}
        for path in fs.ls(folder, detail=False):
            name = posixpath.basename(str(path))
            report = stems.get(lines_of(name) or "")
            if report is not None and name != report.extra.get(_IMAGES):
                fs.rm_file(path)


class JsonlSink(Sink):
    """One file of lines and its tar, under construction."""

    def __init__(self, uri: str, schema: pa.Schema, options: StorageOptions | None) -> None:
        self._uri = uri
        self._options = options
        self._encoder = SampleEncoder(schema)
        self._samples = 0
        self._images = StagedFile(stem_of(uri), options)
        try:
            self._tar = TarWriter(self._images.path)
            self._lines: IO[bytes] = tempfile.TemporaryFile(prefix="mm-assets-", dir=_folder_of(uri))  # noqa: SIM115 (until published)
        except BaseException:
            self._images.discard()
            raise

    def write(self, tables: Iterator[pa.Table]) -> None:
        for table in tables:
            for sample in self._encoder.encode(table):
                *images, (_, line) = sample.members
                if images:
                    self._tar.write_group(images)
                self._lines.write(line + b"\n")
                self._samples += 1

    def publish(self) -> tuple[str | None, int]:
        self._tar.close()
        if not self._samples:
            self.discard()
            remove(self._uri, self._options)
            return None, 0
        name, nbytes = None, 0
        if self._tar.groups:
            name = images_name(stem_of(self._uri), _digest_of(self._images.path))
            self._images.uri = join(posixpath.dirname(self._uri) or ".", name)
            nbytes = self._images.publish()
        with self._lines, staged(self._uri, self._options) as packed:
            if self._pack(packed.path, name, _LEVEL) > unpacked_limit(os.path.getsize(packed.path)):
                self._pack(packed.path, name, _STORED)
            nbytes += packed.publish()
        self._images.discard()
        self.extra = {_IMAGES: name}
        return self._uri, nbytes

    def _pack(self, path: str, images: str | None, level: int) -> int:
        """Write the lines with the name of their tar, which is known only now; return their size in bytes."""
        added = f"{{{dumps(IMAGES_TAR)}:{dumps(images)},".encode() if images else b"{"
        self._lines.seek(0)
        with open(path, "wb") as file, gzip.GzipFile("", "wb", level, file, mtime=0) as packed:
            for line in self._lines:
                packed.write(added)
                packed.write(memoryview(line)[1:])
            return packed.tell()

    def discard(self) -> None:
        self._tar.abort()
        self._lines.close()
        self._images.discard()


def _folder_of(uri: str) -> str | None:
    return None if is_remote(uri) else os.path.dirname(local_path(uri)) or "."


def _digest_of(path: str) -> str:
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(_COPIED):
            digest.update(block)
    return digest.hexdigest()
