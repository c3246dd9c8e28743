"""Canonical reader of our tars, with `webdataset` alone: a dictionary of bytes per key, nothing decoded."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, Any

import pyarrow as pa

from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.tar_json import Document, Item, decode_sample, has_bookkeeping
from mm_assets.formats.reader import ShardError
from mm_assets.formats.storage import StorageOptions, is_remote, open_binary, regular_file
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.digest import BLOBS
from mm_assets.interleaved.json_values import FieldTally, build_column, is_json
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA

_BYTES_AT_ONCE = 8 << 20
_READ_BUFFER = 1 << 18
_MAX_JSON = 256 << 20
_BLOCK = 512  # bytes of a tar block
_RESERVED = [field for field in INTERLEAVED_SCHEMA if field.name != BLOBS]
# What Arrow conversion may raise for values that are not of their column's type.
_MISFITS = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, pa.ArrowException)
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
        group: list[Document] = []
        filled = 0
        for document in _documents(path, uri):
            if group and (filled > _BYTES_AT_ONCE or document.schema != group[0].schema):
                yield from _parts(group, uri)
                group, filled = [], 0
            group.append(document)
            filled += document.nbytes
        if group:
            yield from _parts(group, uri)


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
        if file:  # otherwise it is the end of the tar
            name = file["fname"]
            key, dot, suffix = name.partition(".")
            # webdataset would skip it, or change its name.
            if not dot or "/" in name or suffix != suffix.lower():
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
        # Raises for a missing file, or none, which is no damage. An absolute path cannot be mistaken for a
        # scheme such as "pipe:".
        yield os.path.abspath(regular_file(uri))
        return
    with tempfile.NamedTemporaryFile(prefix="mm-assets-", suffix=".tar") as copy:
        with open_binary(uri, options) as file:
            shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        yield copy.name


def _parts(group: list[Document], location: str) -> Iterator[RowPart]:
    rows = [(document.sample_id, item) for document in group for item in document.items]
    try:
        declared = declared_columns(group[0].schema)
    except (ValueError, TypeError, OSError) as error:
        raise ShardError(
            f"{location}: sample {group[0].sample_id!r}: its json states no column types: {error}"
        ) from error
    yield from _fitting(rows, declared, location)


def _fitting(rows: list[tuple[str, Item]], declared: pa.Schema, location: str) -> Iterator[RowPart]:
    """Yield the rows as one table if all values have their types, else as several tables."""
    try:
        table = _table(rows, declared, is_strict=len(rows) > 1)
    except _MISFITS as error:
        if len(rows) < 2:
            raise ShardError(f"{location}: sample {rows[0][0]!r}: {error}") from error
        middle = len(rows) // 2
        yield from _fitting(rows[:middle], declared, location)
        yield from _fitting(rows[middle:], declared, location)
        return
    yield RowPart(table, iter([[item.values.get(BLOBS) for _, item in rows]]))


def _table(rows: list[tuple[str, Item]], declared: pa.Schema, is_strict: bool) -> pa.Table:
    """Return the columns except `BLOBS` in their types.

    If not ``is_strict``, a column whose values do not fit gets a type that fits them.
    """
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for column in [*_RESERVED, *declared, *_undeclared(rows, declared)]:
        values: list[Any]
        if column.name == "sample_id":
            values = [sample_id for sample_id, _ in rows]
        elif column.name in INTERLEAVED_SCHEMA.names:
            values = [item.values.get(column.name) for _, item in rows]
        else:
            values = [item.extras.get(column.name) for _, item in rows]
        try:
            array = _array(values, column)
        except _MISFITS:
            if is_strict:
                raise
            column = _own_type(values, column.name)
            array = build_column(values, column)
        fields.append(column)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    expected = None if is_json(field) else _python_type(field.type)
    if expected is not None and not all(value is None or type(value) is expected for value in values):
        # Arrow would silently accept 5.0 as 5 and true as 1.0.
        raise TypeError(f"column {field.name!r}: not all values are {expected.__name__}")
    if field.name in INTERLEAVED_SCHEMA.names:
        return pa.array(values, field.type)
    return json_codec.decode(values, field)


def _python_type(type_: pa.DataType) -> type | None:
    if pa.types.is_boolean(type_):
        return bool
    if pa.types.is_integer(type_):
        return int
    if pa.types.is_floating(type_):
        return float
    return str if pa.types.is_string(type_) or pa.types.is_large_string(type_) else None


def _undeclared(rows: list[tuple[str, Item]], declared: pa.Schema) -> list[pa.Field]:
    known = set(declared.names)
    names = dict.fromkeys(name for _, item in rows for name in item.extras if name not in known)
    return [_own_type([item.extras.get(name) for _, item in rows], name) for name in names]


def _own_type(values: list[Any], name: str) -> pa.Field:
    tally = FieldTally()
    for value in values:
        tally.observe(value)
    return tally.field(name)


@lru_cache(maxsize=64)
def declared_columns(text: str) -> pa.Schema:
    """Return the passthrough columns that a JSON declares.

    Raises:
        ValueError, TypeError, OSError: the text is no schema.
    """
    if not text:
        return pa.schema([])
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
