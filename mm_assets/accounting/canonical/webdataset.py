"""Canonical reader of our tars, with `webdataset` alone: a dictionary of bytes per key, nothing decoded."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from mm_assets.accounting.canonical.document_tables import document_parts
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.tar_json import Document, decode_sample, has_bookkeeping
from mm_assets.formats.storage import StorageOptions, is_remote, open_binary, regular_file
from mm_assets.interleaved.errors import ShardError

_READ_BUFFER = 1 << 18
_MAX_JSON = 256 << 20
_BLOCK = 512  # bytes of a tar block
_DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error)


def tar_parts(
    uri: str, raw: Callable[[], Iterator[RowPart]], options: StorageOptions | None = None
) -> Iterator[RowPart]:
    """Yield the rows of one tar, in the types its JSON declares; for another layout what ``raw`` yields.

    A value that does not fit its declared type keeps its own type in its row.
    """
    with _local(uri, options) as path:
        if not is_ours(path):
            yield from raw()
            return
        yield from document_parts(_documents(path, uri), uri)


def tar_documents(uri: str, options: StorageOptions | None = None) -> Iterator[Document]:
    """Yield the samples of one of our tars; none for another layout."""
    with _local(uri, options) as path:
        if is_ours(path):
            yield from _documents(path, uri)


def tar_offsets(uri: str, options: StorageOptions | None = None) -> tuple[int, ...]:
    """Return the byte offsets at which samples of our tar begin, and the end of the last one.

    Raises as `tar_documents` does.
    """
    starts, end = [], 0
    for document in tar_documents(uri, options):
        starts.append(document.span[0])
        end = document.span[1]
    return (*starts, end)


def is_ours(uri: str, options: StorageOptions | None = None) -> bool:
    """Return whether a tar is one of ours, which declares the types of its columns.

    Raises:
        FileNotFoundError: the tar does not exist.
    """
    with open_binary(uri, options) as file:
        return _is_ours(file)


def _documents(path: str, uri: str) -> Iterator[Document]:
    from webdataset.tariterators import group_by_keys, tar_file_expander

    repeated: set[str] = set()
    spans: dict[str, tuple[int, int]] = {}

    def keep_repeated(error: Exception) -> bool:
        text = str(error.args[0]) if error.args else ""
        name, found, _ = text.partition(": duplicate file name in tar file")
        if not found:
            raise error
        repeated.add(name.partition(".")[0])
        return True

    try:
        # The same steps as `webdataset.WebDataset` on an open file, with a buffer larger than the reads of
        # `tarfile`.
        with open(path, "rb", buffering=_READ_BUFFER) as stream:
            files = tar_file_expander([{"url": path, "stream": stream}], handler=keep_repeated)
            for sample in group_by_keys(_placed(files, spans, uri), handler=keep_repeated):
                del sample["__url__"]
                document = decode_sample(sample, uri)
                if sample["__key__"] in repeated:
                    raise ShardError(f"{uri}: sample {document.sample_id!r} occurs twice")
                document.span = spans.pop(sample["__key__"])
                yield document
    except _DAMAGE as error:
        raise ShardError(
            f"{uri}: webdataset cannot read it: {error.args[0] if error.args else error!r}"
        ) from error


def _placed(
    files: Iterable[dict[str, Any]], spans: dict[str, tuple[int, int]], uri: str
) -> Iterator[dict[str, Any]]:
    """Yield the members; ``spans`` gets the byte range of each key, for a tar with only these members."""
    begin = end = 0
    last = ""
    for file in files:
        if file:  # else it is the end of the tar
            name = file["fname"]
            key, dot, suffix = name.partition(".")
            if (
                not dot or "/" in name or suffix != suffix.lower()
            ):  # webdataset would pass over it, or not show what it is called
                raise ShardError(f"{uri}: member {name!r} has no name of the layout")
            if key != last:
                begin, last = end, key
            end += _BLOCK + (len(file["data"]) + _BLOCK - 1) // _BLOCK * _BLOCK
            spans[key] = begin, end
        yield file


def _is_ours(file: IO[bytes]) -> bool:
    """Decide by the first JSON member of the tar; damage is left for the readers to report."""
    try:
        with tarfile.open(fileobj=file) as tar:
            for member in tar:
                if member.isreg() and member.name.lower().endswith(".json"):
                    content = tar.extractfile(member)
                    return (
                        content is not None
                        and member.size <= _MAX_JSON
                        and has_bookkeeping(json.load(content))
                    )
    except (*_DAMAGE, ValueError, RecursionError):
        return False
    return False


@contextmanager
def _local(uri: str, options: StorageOptions | None) -> Iterator[str]:
    if not is_remote(uri):
        # A file that is not there, or no file, is no damage.
        yield os.path.abspath(regular_file(uri))  # no name may be taken for a scheme, such as "pipe:"
        return
    with tempfile.NamedTemporaryFile(prefix="mm-assets-", suffix=".tar") as copy:
        with open_binary(uri, options) as file:
            shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        yield copy.name
