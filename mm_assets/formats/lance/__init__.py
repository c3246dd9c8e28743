"""Lance: one table of many partitions, any number of which is replaced in one commit.

Here is where a table lies, and what its columns are stored as.

* `Location`: a folder or the URL of a store, with the same few file operations for both.
* `until_answered` repeats what Lance gave up because a store did not answer one of its requests. Lance
  repeats most requests itself. It does not repeat listings that broke off, nor puts that may have been
  carried out: the commit of a version is one. Who calls Lance can tell whether it was, and begins anew.
* `opened`: a version of a table. Errors for unreadable data name the table (`naming_table`).
* Storage types and names are chosen so that every column reads back equal. Lance 14 re-encodes ``json_`` as
  JSONB (numbers and key order change), turns view types into ``string``/``binary``, and reads dictionaries
  back with other dictionaries. Such columns are stored as a plain type, and the original type is kept in the
  field's metadata. Columns of all other types are stored as they are, and so are names, but for those that
  Lance refuses.
"""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from mm_assets.model import json_codec
from mm_assets.model.errors import MmAssetsError
from mm_assets.model.nested_types import inner_types, is_text, plain_type, with_children
from mm_assets.storage import canonical_url, fsspec_arguments
from mm_assets.storage.errors import StoreError, attempts, cause_line, error_line, is_of_store, located, pause
from mm_assets.storage.files import filesystem, local_bytes, replace_file, sweep
from mm_assets.storage.temporary import is_temporary

if TYPE_CHECKING:
    import lance

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = 16  # requests to a remote store under way at once

# Lance's option names (without their optional "aws_") -> the arguments of s3fs.
_S3_ARGUMENTS = {"access_key_id": "key", "secret_access_key": "secret", "session_token": "token"}
_S3_CLIENT = {
    "region": "region_name",
    "default_region": "region_name",
    "endpoint": "endpoint_url",
    "endpoint_url": "endpoint_url",
}

_STDERR = 2
_PANIC = re.compile(rb"\n?^thread '[^\n]* panicked at .*", re.MULTILINE | re.DOTALL)
_stderr_is_led_away = threading.Lock()
RAISED = (OSError, ValueError, RuntimeError)  # by Lance, for files that are not as they were written


class Location:
    """A table's folder or URL. Paths given to its methods are relative to it, with ``/``."""

    def __init__(self, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> None:
        text = os.fspath(uri)
        scheme, separator, rest = text.partition("://")
        self.storage_options = dict(storage_options or {})
        self._root: Path | None = None
        self._fs: Any = None
        self.fs_options: dict[str, Any] | None = None  # of fsspec, for a URL
        if not separator or scheme == "file":
            self._root = Path(os.path.abspath(rest if separator else text))
            self.uri = str(self._root)
            return
        is_s3 = scheme in ("s3", "s3a")
        arguments = _s3_arguments(self.storage_options) if is_s3 else fsspec_arguments(text)
        # Listings must be fresh: other processes write records all the time.
        self.fs_options = {"use_listings_cache": False, **arguments}
        self._fs, _ = filesystem(text, self.fs_options)
        self.uri = canonical_url(text).rstrip("/")

    def has_table(self) -> bool:
        """Return whether there is a committed version.

        It lists the folder, because Lance prints a warning when there is none.
        """
        return any(
            name.endswith(".manifest") for name in self.names("_versions")
        )  # a killed first commit leaves "….manifest#1"

    def names(self, folder: str) -> list[str]:
        """Return the names of the finished files directly in a folder, sorted; none for a missing folder."""
        try:
            if self._root is not None:
                found = os.listdir(self._root / folder)
            else:
                found = [
                    str(path).rsplit("/", 1)[-1] for path in self._fs.ls(f"{self.uri}/{folder}", detail=False)
                ]
        except FileNotFoundError:
            return []
        return sorted(name for name in found if name and not is_temporary(name))

    def exists(self, path: str) -> bool:
        if self._root is not None:
            return (self._root / path).exists()
        return bool(self._fs.exists(f"{self.uri}/{path}"))

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None when it does not exist (any more)."""
        if self._root is not None:
            return local_bytes(os.path.join(self.uri, path))
        try:
            return bytes(self._fs.cat_file(f"{self.uri}/{path}"))
        except FileNotFoundError:
            return None

    def read_all(self, paths: Sequence[str]) -> Iterable[bytes | None]:
        """Return what `read` returns of each; of a store several are read at once."""
        # Local files of kilobytes are read faster than they are handed to a thread.
        return each(self.read, paths) if self._root is None else map(self.read, paths)

    def put(self, path: str, data: bytes) -> None:
        """Publish a small file in one step: a reader sees the previous bytes or these, never a part."""
        if self._root is None:
            self._fs.pipe_file(f"{self.uri}/{path}", data)
            return
        replace_file(str(self._root / path), data)

    def sweep(self, folder: str) -> None:
        """Remove what killed processes left in a local folder during a `put`."""
        if self._root is not None:
            sweep(str(self._root / folder))

    def delete(self, path: str) -> None:
        """Remove a file. A missing file is no error: two committers prune the same records."""
        try:
            if self._root is not None:
                (self._root / path).unlink()
            else:
                self._fs.rm_file(f"{self.uri}/{path}")
        except FileNotFoundError:
            return


def each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return ``function`` of every item, in order; several run at once. The first error is raised."""
    work = list(items)
    if len(work) < 2:
        return [function(item) for item in work]
    with ThreadPoolExecutor(min(_THREADS, len(work)), thread_name_prefix="mm-lance") as pool:
        return list(pool.map(function, work))


def _s3_arguments(options: Mapping[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    client: dict[str, str] = {}
    for option, value in options.items():
        name = option.lower().removeprefix("aws_")
        if name in _S3_ARGUMENTS:
            arguments[_S3_ARGUMENTS[name]] = value
        elif name in _S3_CLIENT:
            client[_S3_CLIENT[name]] = value
    if client:
        arguments["client_kwargs"] = client
    return arguments


_UNANSWERED = re.compile(
    r"HTTP error: (?:error sending request|request or response body error|error decoding response)"
)
_REPEATED_BY_LANCE = re.compile(r"after [1-9]\d* retries")


def is_unanswered(error: BaseException) -> bool:
    """Return whether a request of Lance got no answer, or half of one, and was not repeated."""
    text = str(error)
    return (
        isinstance(error, OSError | ValueError | RuntimeError)
        and _UNANSWERED.search(text) is not None
        and _REPEATED_BY_LANCE.search(text) is None
    )


def until_answered(action: Callable[[], Result]) -> Result:
    """Return the result of ``action``, which is called again after each `is_unanswered` error.

    Raises:
        OSError: the store does not answer, after several attempts.
    """
    most, failures = attempts(), 0
    while True:
        try:
            return action()
        except (OSError, ValueError, RuntimeError) as error:
            failures += 1
            if failures >= most or not is_unanswered(error):
                raise
        time.sleep(pause(failures))


ARROW_TYPE = (
    b"mm_assets:arrow_type"  # field metadata: base64 of an IPC schema with one field of the original type
)

# Lance's own columns: a table with one of these panics when it is read.
_RESERVED_NAMES = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
_REFUSED = re.compile(r"[.`*\0]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")

Tabular = TypeVar("Tabular", pa.Table, pa.RecordBatch)


class UnsupportedType(MmAssetsError, TypeError):
    """A column type that Lance cannot hold and that has no faithful storage type.

    The message names the column.
    """


def to_storage_schema(schema: pa.Schema) -> pa.Schema:
    """Return the storage schema for data of ``schema``. Idempotent.

    Raises:
        UnsupportedType: for a column that Lance cannot hold.
    """
    return pa.schema([_to_storage_field(field) for field in schema], metadata=schema.metadata)


def from_storage_schema(schema: pa.Schema) -> pa.Schema:
    """Return the original schema; the inverse of `to_storage_schema`."""
    return pa.schema([_from_storage_field(field) for field in schema], metadata=schema.metadata)


def to_storage(data: Tabular) -> Tabular:
    """Return the same rows in the storage types.

    Raises:
        UnsupportedType: naming the column.
    """
    return _convert(data, to_storage_schema(data.schema), _cast)


def from_storage(data: Tabular) -> Tabular:
    """Return the same rows in the original types.

    Dictionaries are built again: values and type are equal, codes need not be.
    """
    return _convert(data, from_storage_schema(data.schema), _restore)


def file_version(schema: pa.Schema) -> str:
    """Return the Lance file version for data of a storage schema: "2.0" or "2.2".

    Version 2.0 is 4-6x faster for images, but refuses null structs and maps, so that a schema with either, at
    any depth, needs 2.2.
    """
    types = (type_ for field in schema for type_ in inner_types(field.type))
    return "2.2" if any(pa.types.is_struct(type_) or pa.types.is_map(type_) for type_ in types) else "2.0"


def _convert(data: Tabular, schema: pa.Schema, cast: Callable[..., pa.Array]) -> Tabular:
    if data.schema.equals(schema, check_metadata=True):
        return data
    columns = [
        column if column.type == field.type else cast(column, field)
        for column, field in zip(data.columns, schema, strict=True)
    ]
    return type(data).from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    return _rebuilt(column, field) if _has_fixed_size_lists(column.type) else column.cast(field.type)


def _restore(column: pa.Array, field: pa.Field) -> pa.Array:
    if pa.types.is_dictionary(field.type) and not is_text(field.type.value_type):
        # Arrow casts only text to a dictionary type; other values are encoded first, then given their index
        # type.
        encoded = column.cast(field.type.value_type).dictionary_encode()
        return encoded if encoded.type == field.type else encoded.cast(field.type)
    return _rebuilt(column, field) if _has_fixed_size_lists(field.type) else column.cast(field.type)


def _rebuilt(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the column converted value by value.

    Casts between lists with and without a size give broken arrays, or kill the process.
    """
    return json_codec.decode(json_codec.encode(column, field.with_type(column.type)), field)


def _to_storage_field(field: pa.Field) -> pa.Field:
    stored = _storage_type(field.type, field.name, top=True)
    if stored == field.type:
        return field
    original = pa.schema([pa.field("", field.type)]).serialize().to_pybytes()
    return field.with_type(stored).with_metadata(
        {**(field.metadata or {}), ARROW_TYPE: base64.b64encode(original)}
    )


def _from_storage_field(field: pa.Field) -> pa.Field:
    metadata = dict(field.metadata or {})
    packed = metadata.pop(ARROW_TYPE, None)
    if packed is None:
        return field.with_type(plain_type(field.type))
    original = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(packed))).field(0).type
    return field.with_type(original).with_metadata(metadata or None)


def _storage_type(type_: pa.DataType, name: str, *, top: bool = False) -> pa.DataType:
    if isinstance(type_, pa.JsonType):
        return _storage_type(type_.storage_type, name)
    if pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_dictionary(type_):
        if not top and not is_text(type_.value_type):
            raise UnsupportedType(
                f"column {name!r}: Lance cannot hold nested {type_}; decode the dictionary first"
            )
        return _storage_type(type_.value_type, name)
    if pa.types.is_decimal32(type_) or pa.types.is_decimal64(type_):
        return pa.decimal128(type_.precision, type_.scale)
    if _is_refused(type_):
        raise UnsupportedType(f"column {name!r}: Lance cannot hold {type_}")
    if pa.types.is_map(type_):
        return _same_unless_changed(
            type_, pa.map_(_child(type_.key_field, name), _child(type_.item_field, name))
        )  # none with sorted keys
    if _is_fixed_size_list(type_):
        return pa.list_(_child(type_.value_field, name))  # Lance writes these, and cannot read them back
    if pa.types.is_fixed_size_list(type_):  # Lance forgets that the items are never null
        return pa.list_(_child(type_.value_field, name).with_nullable(True), type_.list_size)
    return _same_unless_changed(type_, with_children(type_, lambda field: _child(field, name)))


def _child(field: pa.Field, column: str) -> pa.Field:
    return field.with_type(_storage_type(field.type, f"{column}.{field.name}"))


def _same_unless_changed(type_: pa.DataType, rebuilt: pa.DataType) -> pa.DataType:
    # Arrow types compare without child names here and there: hand back the very type where nothing had to
    # change.
    return type_ if rebuilt.equals(type_) else rebuilt


def _is_fixed_size_list(type_: pa.DataType) -> bool:
    """Return whether this is a fixed-size list of anything but numbers."""
    return pa.types.is_fixed_size_list(type_) and not pa.types.is_primitive(type_.value_type)


def _has_fixed_size_lists(type_: pa.DataType) -> bool:
    return any(map(_is_fixed_size_list, inner_types(type_)))


def _is_refused(type_: pa.DataType) -> bool:
    checks = (
        pa.types.is_list_view,
        pa.types.is_large_list_view,
        pa.types.is_run_end_encoded,
        pa.types.is_interval,
        pa.types.is_union,
    )
    is_empty = (
        type_.num_fields == 0
        if pa.types.is_struct(type_)
        else pa.types.is_fixed_size_binary(type_) and type_.byte_width == 0
    )
    return is_empty or any(check(type_) for check in checks)


def stored_name(name: str) -> str:
    """Return the name of a column in a Lance table. Injective.

    Names that Lance would refuse or misread are percent-escaped.
    """
    if not name:
        return "%"
    if name not in _RESERVED_NAMES and name != "%" and not _REFUSED.search(name) and not _ESCAPE.search(name):
        return name
    text = re.sub(r"[%.`*\0]", lambda found: f"%{ord(found[0]):02X}", name)
    return f"%5F{text[1:]}" if text in _RESERVED_NAMES else text


def original_name(stored: str) -> str:
    """Return the original name; one that `stored_name` does not make (a table of others) is kept."""
    if stored == "%":
        return ""
    name = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), stored)
    return name if stored_name(name) == stored else stored


def with_stored_names(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_name(stored_name(field.name)) for field in schema], metadata=schema.metadata)


def with_original_names(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [field.with_name(original_name(field.name)) for field in schema], metadata=schema.metadata
    )


@contextmanager
def naming_table(uri: str) -> Iterator[None]:
    """Turn Lance's errors for damaged files into ``OSError``, in one line that names the table.

    This includes Lance's panics, which are no ``Exception``. What a store refused is a ``StoreError``: the
    files may be as they were written.
    """
    try:
        with located(uri):
            yield
    except FileNotFoundError:
        raise
    except BaseException as error:
        if is_of_store(error):
            raise StoreError(error_line(error)) from error
        if not isinstance(error, RAISED) and type(error).__name__ != "PanicException":
            raise
        raise OSError(f"{uri}: unreadable Lance data: {cause_line(error, uri)}") from error


def opened(uri: str, **arguments: Any) -> lance.LanceDataset:
    """Open a version of a table.

    Raises:
        OSError: for a damaged manifest.
    """

    import lance

    def attempt() -> lance.LanceDataset:
        with _without_panic_text():
            dataset = lance.dataset(uri, **arguments)
            _ = dataset.schema  # decoded on first use
            return dataset

    with naming_table(uri):
        return until_answered(attempt)


@contextmanager
def _without_panic_text() -> Iterator[None]:
    """Keep from stderr what Rust itself prints there of a panic, which the error says as well.

    What else is printed meanwhile, 64 KiB at most, comes after the block.
    """
    with _stderr_is_led_away, ExitStack() as stack:
        try:
            stderr = os.dup(_STDERR)
        except OSError:  # there is none
            yield
            return
        stack.callback(os.close, stderr)
        read_end, write_end = os.pipe()
        for end in (read_end, write_end):
            stack.callback(os.close, end)
            os.set_blocking(end, False)
        os.dup2(write_end, _STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, _STDERR)
            with suppress(OSError):  # nothing was printed, or stderr takes nothing
                os.write(stderr, _PANIC.sub(b"", os.read(read_end, 1 << 16)))
