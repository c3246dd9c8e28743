"""Manifests of tags: which state of the outputs a tag marks.

versions/<tag>.parquet   a row per shard and asset: versions, inputs, files with sizes and digests
versions/<tag>.json      when, settings, sums, and the digest of the other file. It is published last: a tag
                         without it does not exist
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.accounting.sealed_json import seal, unseal
from mm_assets.formats.arrow_cache.shards import digest_of
from mm_assets.formats.parquet_file import UNREADABLE
from mm_assets.formats.storage import (
    StorageOptions,
    exists,
    filesystem,
    join,
    open_binary,
    staged,
)
from mm_assets.interleaved.errors import DataError
from mm_assets.versions.capture import FOLDER
from mm_assets.versions.output_state import FileState, Group, OutputState, by_partition
from mm_assets.versions.tag_names import check_tag_name

FORMAT = 1
_FILE = pa.struct(
    [("path", pa.string()), ("bytes", pa.int64()), ("digest", pa.string()), ("mark", pa.string())]
)
STATES_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        pa.field("asset", pa.string(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("made_by", pa.string(), nullable=False),
        pa.field("inputs", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("rows", pa.int64()),
        pa.field("samples", pa.int64()),
        pa.field("losses", pa.string(), nullable=False),
        pa.field("files", pa.list_(_FILE), nullable=False),
    ]
)
_ROWS_AT_ONCE = 4096


class Manifest:
    """The manifest of an existing tag.

    Args:
        root: storage root.
        name: the tag.

    Raises:
        ValueError: the name is none, or the manifest was changed or torn.
        FileNotFoundError: there is no such tag.
    """

    def __init__(self, root: str, name: str, options: StorageOptions | None = None) -> None:
        check_tag_name(name)
        self.name = name
        self._options = options
        self._uri = states_uri(root, name)
        header = header_uri(root, name)
        if not exists(header, options):
            known = ", ".join(tag_names(root, options)[:20]) or "none"
            raise FileNotFoundError(f"{root}: no tag {name!r}; tags here: {known}")
        with open_binary(header, options) as file:
            data = file.read()
        try:
            self.header = unseal(data)
            if self.header["format"] != FORMAT:
                raise ValueError(f"of format {self.header['format']}, and {FORMAT} is known")
        except (ValueError, LookupError) as error:
            raise DataError(f"{header}: not a manifest: {error}") from error

    def states(self) -> Iterator[OutputState]:
        """Yield the states, sorted by partition, each partition's in the order of the graph.

        Raises:
            DataError: the file was changed or torn.
        """
        settings: Mapping[str, Any] = self.header["settings"]
        with ExitStack() as stack:
            try:
                source = stack.enter_context(open_binary(self._uri, self._options))
                if digest_of(source) != self.header["states"]["digest"]:
                    raise ValueError("other bytes than were written")
                source.seek(0)
                file = pq.ParquetFile(source, pre_buffer=False)
                for batch in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
                    for row in batch.to_pylist():
                        files = tuple(FileState(**entry) for entry in row.pop("files"))
                        inputs = dict(row.pop("inputs"))
                        known = settings.get(row["made_by"], {})
                        yield OutputState(**row, inputs=inputs, files=files, settings=known)
            except UNREADABLE as error:
                raise DataError(f"{self._uri}: not readable: {error}") from error

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Yield the states of each partition by asset, sorted by partition."""
        return by_partition(self.states())


def state_rows(states: Iterator[OutputState] | list[OutputState]) -> pa.Table:
    """Return states as a table in `STATES_SCHEMA`."""
    rows = []
    for state in states:
        row = {name: getattr(state, name) for name in STATES_SCHEMA.names}
        row["inputs"] = sorted(state.inputs.items())
        row["files"] = [asdict(file) for file in state.files]
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=STATES_SCHEMA)


def publish_header(root: str, name: str, header: Mapping[str, Any], options: StorageOptions | None) -> None:
    """Publish the manifest's header, with which the tag exists."""
    with staged(header_uri(root, name), options) as file:
        with open(file.path, "wb") as stream:
            stream.write(seal({"format": FORMAT, **header}, indent=1))
        file.publish()


def tag_names(root: str, options: StorageOptions | None = None) -> list[str]:
    """Return the names of all tags, sorted."""
    fs, path = filesystem(join(root, FOLDER), options)
    fs.invalidate_cache()
    try:
        names = [str(file).rpartition("/")[2] for file in fs.ls(path, detail=False)]
    except FileNotFoundError:
        return []
    return sorted(n.removesuffix(".json") for n in names if n.endswith(".json") and not n.startswith("."))


def newest(root: str, options: StorageOptions | None = None) -> Manifest | None:
    """Return the manifest of the tag that was made last; None without any that can be read."""
    found = []
    for name in tag_names(root, options):
        try:
            found.append(Manifest(root, name, options))
        except ValueError:  # whoever asks for that very tag is told
            continue
    return max(found, key=lambda manifest: str(manifest.header["created"]), default=None)


def header_uri(root: str, name: str) -> str:
    """Return the location of a tag's header."""
    return join(root, FOLDER, f"{name}.json")


def states_uri(root: str, name: str) -> str:
    """Return the location of a tag's states."""
    return join(root, FOLDER, f"{name}.parquet")


def identity(state: OutputState) -> bytes:
    """Return bytes that two states share only if content, origin and files are the same."""
    files = [(file.path, file.bytes, file.digest) for file in state.files]
    return json.dumps([state.partition, state.asset, state.version, state.fingerprint, files]).encode()
