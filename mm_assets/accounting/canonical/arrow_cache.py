"""Canonical reader of interleaved Arrow caches, with `pyarrow.ipc` alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from mm_assets.accounting.canonical.parts import RowPart, blob_index, naming_file
from mm_assets.formats.storage import StorageOptions, is_remote, join, open_binary, regular_file
from mm_assets.interleaved.schema_text import schema_from_text

_METADATA = "_metadata.json"


def arrow_cache_parts(uri: str, options: StorageOptions | None = None) -> Iterator[RowPart]:
    """Yield the rows of one cache, in the types of its shards, or of its metadata if it has no shards.

    Args:
        uri: its folder, or the `_metadata.json` in it.
        options: for the file system.
    """
    folder = uri.removesuffix(f"/{_METADATA}")
    metadata = join(folder, _METADATA)
    with naming_file(metadata), open_binary(metadata, options) as file:
        content: dict[str, Any] = json.load(file)
        names, schema = list(content["shard_filenames"]), schema_from_text(content["arrow_schema"])
        if any("/" in name for name in names):
            raise ValueError("a shard of another folder")
    if not names:
        yield RowPart(pa.Table.from_batches([], schema))
    for name in names:
        yield from _shard(join(folder, name), options)


def _shard(uri: str, options: StorageOptions | None) -> Iterator[RowPart]:
    # Read, not mapped: mapped pages count as memory of the worker until the file is closed.
    with (
        naming_file(uri),
        open_binary(uri, options) if is_remote(uri) else pa.OSFile(regular_file(uri)) as file,
    ):
        reader = ipc.open_file(file, options=ipc.IpcReadOptions(use_threads=False))
        blobs = blob_index(reader.schema)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            table = pa.Table.from_batches([batch])
            if blobs < 0:
                yield RowPart(table)
            else:
                yield RowPart(
                    table.remove_column(blobs), iter([batch.column(blobs)]), blobs, reader.schema.field(blobs)
                )
