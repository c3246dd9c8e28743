"""MDS, the shards of mosaicml-streaming: reader and writer of a document per sample.

A shard is little-endian: the number of samples, the byte offset of each and of the end (32 bits), a JSON
object that describes the columns, then the samples. A sample has the size of each of its values (32 bits),
then the values. Ours have three columns:

    image_bytes   bytes   the images, one behind the other
    image_sizes   json    their sizes
    json          json    the document, as the json member of a tar (docs/tar_layout.md)

``index.json`` in the folder names the shards; `streaming.StreamingDataset` reads it.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import IO, Any

import numpy as np
import pyarrow as pa

from mm_assets.formats.batching import SampleIds
from mm_assets.formats.names import format_of, sample_key
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import FileSource
from mm_assets.formats.tar.scan import Member, TarIndex, by_name
from mm_assets.formats.tar.spool import open_tar
from mm_assets.formats.webdataset import IMAGE_MEMBERS, MAX_JSON_BYTES, SAMPLE_ID, RawLayout
from mm_assets.formats.webdataset.documents import Mint1tDecoder
from mm_assets.formats.webdataset.native import SampleEncoder
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader
from mm_assets.formats.webdataset.samples import TarSamples
from mm_assets.formats.writer import InterleavedWriter, PartitionReport, Sink
from mm_assets.model.errors import ShardError
from mm_assets.storage.files import (
    StagedFile,
    StorageOptions,
    filesystem,
    is_remote,
    join,
    local_path,
    publish_bytes,
    read_bytes,
    remove,
)
from mm_assets.storage.stamps import files_in, parallel_map

__all__ = ["InterleavedMdsReader", "InterleavedMdsWriter"]

_WRITTEN = format_of("mds").written
_INDEX = "index.json"
_COLUMNS = {"image_bytes": "bytes", "image_sizes": "json", "json": "json"}  # in the order of their names
_VERSION = 2
_CONFIG = {
    "column_encodings": list(_COLUMNS.values()),
    "column_names": list(_COLUMNS),
    "column_sizes": [None] * len(_COLUMNS),
    "compression": None,
    "format": "mds",
    "hashes": [],
    "size_limit": None,
    "version": _VERSION,
}
_CONFIG_BYTES = json.dumps(_CONFIG, sort_keys=True).encode()
_SIZES = struct.Struct(f"<{len(_COLUMNS)}I")
_MAX_BYTES = (1 << 32) - 1  # of a shard: offsets have 32 bits
_OFFSET = np.dtype("<u4")


class InterleavedMdsWriter(InterleavedWriter):
    """Writer of one MDS shard per partition into a folder, with the index that `streaming` reads.

    If ``path`` ends in ``.mds`` it writes one bare shard instead. See `InterleavedWriter` for the arguments.
    """

    suffix = _WRITTEN

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return MdsSink(self.uri_of(partition), schema, self.storage_options)

    def finish(self, reports: Sequence[PartitionReport]) -> None:
        """Write the index of all shards in the folder; without any there is none."""
        if self.is_single_file:
            return
        found = files_in(self.folder, self.storage_options, _WRITTEN)
        names = sorted(name for name in found if not name.startswith("."))
        if not names:
            remove(join(self.folder, _INDEX), self.storage_options)
            return
        counts = parallel_map(
            partial(_samples_in, self.folder, options=self.storage_options), names, self.folder
        )
        shards = [
            {
                **_CONFIG,
                "raw_data": {"basename": name, "bytes": found[name].size, "hashes": {}},
                "samples": samples,
                "zip_data": None,
            }
            for name, samples in zip(names, counts, strict=True)
        ]
        index = json.dumps({"shards": shards, "version": _VERSION}, sort_keys=True).encode()
        if read_bytes(join(self.folder, _INDEX), self.storage_options) != index:
            publish_bytes(join(self.folder, _INDEX), index, self.storage_options)


def _samples_in(folder: str, name: str, options: StorageOptions | None) -> int:
    fs, path = filesystem(join(folder, name), options)
    return int.from_bytes(fs.cat_file(path, start=0, end=_OFFSET.itemsize), "little")


class MdsSink(Sink):
    """One shard under construction. Its head has all offsets, so the samples wait in a temporary file."""

    def __init__(self, uri: str, schema: pa.Schema, options: StorageOptions | None) -> None:
        self._uri = uri
        self._options = options
        self._encoder = SampleEncoder(schema)
        self._ends = [0]
        self._staged = StagedFile(uri, options)
        folder = None if is_remote(uri) else os.path.dirname(local_path(uri)) or "."
        try:
            self._samples: IO[bytes] = tempfile.TemporaryFile(prefix="mm-assets-", dir=folder)  # noqa: SIM115 (until published)
        except BaseException:
            self._staged.discard()
            raise

    def write(self, tables: Iterator[pa.Table]) -> None:
        for table in tables:
            for sample in self._encoder.encode(table):
                *images, (_, document) = sample.members
                views = [memoryview(image).cast("B") for _, image in images]
                sizes = json.dumps([len(view) for view in views]).encode()
                total = sum(map(len, views))
                if self._ends[-1] + total > _MAX_BYTES:
                    raise self._too_large()
                self._samples.write(_SIZES.pack(total, len(sizes), len(document)))
                for view in (*views, sizes, document):
                    self._samples.write(view)
                self._ends.append(self._samples.tell())

    def publish(self) -> tuple[str | None, int]:
        count = len(self._ends) - 1
        if not count:
            self.discard()
            remove(self._uri, self._options)
            return None, 0
        start = (2 + count) * _OFFSET.itemsize + len(_CONFIG_BYTES)
        if start + self._ends[-1] > _MAX_BYTES:
            raise self._too_large()
        offsets = np.array([count, *(start + end for end in self._ends)], _OFFSET)
        with self._samples as samples, open(self._staged.path, "wb") as file:
            file.write(offsets.tobytes() + _CONFIG_BYTES)
            samples.seek(0)
            shutil.copyfileobj(samples, file, 1 << 20)
        return self._uri, self._staged.publish()

    def _too_large(self) -> ShardError:
        return ShardError(
            f"{self._uri}: an MDS shard has less than 4 GiB: write smaller ones (mm-assets reshard)"
        )

    def discard(self) -> None:
        self._samples.close()
        self._staged.discard()


def mds_index(descriptor: int, name: str) -> TarIndex:
    """Return the images and documents of an open shard, as if they were the members of a tar.

    Raises:
        ShardError: it is cut or damaged, or has other columns than ours.
    """
    end = os.fstat(descriptor).st_size
    offsets = _offsets(descriptor, name, end)
    head = os.pread(
        descriptor, max(int(offsets[0]) - (len(offsets) + 1) * _OFFSET.itemsize, 0), (len(offsets) + 1) * 4
    )
    try:
        columns = json.loads(head)
        known = dict(zip(columns["column_names"], columns["column_encodings"], strict=True))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ShardError(f"{name}: no MDS shard, or damaged: {error!r:.200}") from error
    if known != _COLUMNS or columns.get("column_sizes") != _CONFIG["column_sizes"]:
        raise ShardError(f"{name}: not interleaved data: its columns are {', '.join(map(str, known))}")
    members: list[Member] = []
    for number, (at, stop) in enumerate(zip(offsets.tolist(), offsets[1:].tolist(), strict=False)):
        members += _members(descriptor, at, stop, f"{name}: sample {number}")
    return TarIndex(name, members, by_name(members), [], end)


def _offsets(descriptor: int, name: str, end: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    count = int.from_bytes(os.pread(descriptor, _OFFSET.itemsize, 0), "little")
    data = os.pread(descriptor, min((count + 1) * _OFFSET.itemsize, end), _OFFSET.itemsize)
    offsets = np.frombuffer(data[: len(data) // 4 * 4], _OFFSET)
    if len(offsets) != count + 1 or int(offsets[-1]) != end or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise ShardError(
            f"{name}: no MDS shard, or it is cut: its samples do not end at byte {end}, where it ends"
        )
    return offsets


def _members(descriptor: int, at: int, stop: int, place: str) -> list[Member]:
    """Return the images of a sample, and its document."""
    try:
        sizes = _SIZES.unpack(os.pread(descriptor, min(_SIZES.size, stop - at), at))
        start = at + _SIZES.size
        if start + sum(sizes) != stop or max(sizes[1:]) > MAX_JSON_BYTES:
            raise ValueError(f"values of {sizes} bytes in {stop - at}")
        image_sizes = json.loads(os.pread(descriptor, sizes[1], start + sizes[0]))
        document_at = start + sizes[0] + sizes[1]
        document = json.loads(os.pread(descriptor, sizes[2], document_at))
        names = [name for name in document[IMAGE_MEMBERS] if name is not None]
        if min(image_sizes, default=0) < 0 or sum(image_sizes) != sizes[0]:
            raise ValueError(f"images of {image_sizes} bytes in {sizes[0]}")
        members = []
        for name, size in zip(names, image_sizes, strict=True):
            members.append(Member(str(name), start, size, None, start))
            start += size
        return [*members, Member(f"{sample_key(document[SAMPLE_ID])}.json", document_at, sizes[2], None, at)]
    except (struct.error, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ShardError(f"{place}: damaged: {error!r:.200}") from error


class MdsSamples(TarSamples):
    """The samples of an opened shard."""

    def _open(self, uri: str, options: StorageOptions | None, stack: ExitStack) -> tuple[int, TarIndex]:
        descriptor = stack.enter_context(open_tar(uri, self.name, options))
        return descriptor, mds_index(descriptor, self.name)

    def _documents(self, layout: RawLayout, max_member_bytes: int) -> tuple[Mint1tDecoder, list[Member]]:
        decoder = Mint1tDecoder(self.path, self.index, layout, max_member_bytes)
        return decoder, [
            member for member in self.index.members if posixpath.splitext(member.name)[1] == ".json"
        ]


class InterleavedMdsReader(InterleavedWebdatasetReader):
    """Reader of MDS shards that this project wrote; see `InterleavedReader` for the arguments."""

    suffixes = (_WRITTEN,)

    def _source(self, uri: str, partition: Partition, ids: SampleIds | None) -> FileSource:
        return self._opened(uri, partition, ids, MdsSamples)
