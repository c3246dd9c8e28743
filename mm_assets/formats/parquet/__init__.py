"""Parquet files: opened safely, read a few rows at a time, and kept in the types that were written.

* Small tables are written and read as a whole: `publish_table`, `read_small_table`.
* Types: Parquet has no seconds, no 64-bit dates and other names for list items. Arrow writes the original
  schema beside the data, but restores only part of it. Lists and structs of nulls come back as broken arrays
  (Arrow 26): they are stored as booleans. Dictionaries inside other types are only read back when they are of
  text: those of other values are stored as their values. `stored_schema` and `original_schema` map both ways.
* Locators: names of rows, and of items in them (`row_name`).
* `ColumnIntegers`: ranges of the integers in 64-bit columns. The same columns of other shards may be floats,
  which cannot hold all 64-bit integers exactly.
* References to images (`with_image_refs`): a file may have its images in the one of the same name beside it.
* `rows_as_json`: single rows for people to read, without bytes, and with invalid text kept.

The modules of this room read our own files, an item a row, and documents of others, a document a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.parquet import open_parquet_file

from mm_assets.model import json_codec
from mm_assets.model.errors import MmAssetsError, ShardError
from mm_assets.model.json_codec import FieldTally, dumps
from mm_assets.model.nested_types import filled_column, is_text, with_bytes, with_children
from mm_assets.model.schema import schema_from_text, schema_to_text
from mm_assets.storage.errors import cause_line, is_of_store
from mm_assets.storage.files import (
    StorageOptions,
    absolute,
    filesystem,
    is_remote,
    join,
    open_binary,
    regular_file,
    staged,
)

T = TypeVar("T")

ROWS_AT_ONCE = 4096
_READ_BUFFER = 1 << 16  # small enough to stay in the processor's cache until it is copied
# What pyarrow raises for a damaged file. ValueError: names that are not UTF-8.
_DAMAGE = (pa.ArrowException, OSError, ValueError)
_INT96_UNIT = "coerce_int96_timestamp_unit"
_MAX_LISTED = 100_000  # columns, or row groups: each one in a footer takes kilobytes of memory
# What reading a torn or foreign file may raise; Arrow raises OSError for damaged Parquet.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
    RecursionError,
    pa.ArrowException,
)


def open_parquet(
    uri: str, name: str, options: StorageOptions | None, opening: Mapping[str, Any]
) -> pq.ParquetFile:
    """Open a Parquet file.

    Args:
        uri: path or URL.
        name: the file in messages.
        options: for the file system.
        opening: arguments of `pyarrow.parquet.ParquetFile`.

    Raises:
        OSError: the file cannot be opened; see also `regular_file`.
        ShardError: the file is no Parquet.
        TypeError: an argument in ``opening`` does not exist.
    """
    arguments = {"pre_buffer": is_remote(uri), "thrift_container_size_limit": _MAX_LISTED, **opening}
    if not is_remote(uri):
        path = regular_file(uri)
        arguments = {"buffer_size": _READ_BUFFER, **arguments}
    try:
        if is_remote(uri):
            source = pa.PythonFile(open_binary(uri, options), mode="r")
        else:
            source = path
        return open_checked(source, **arguments)
    except FileNotFoundError:
        raise
    except UnfitTimestamps as error:
        raise ShardError(f"{name}: {error}") from error
    except _DAMAGE as error:
        if is_of_store(error):
            raise
        is_too_long = "Exceeded size limit" in str(error)
        reason = (
            f"its footer lists more than {_MAX_LISTED} columns or row groups"
            if is_too_long
            else cause_line(error, uri)
        )
        raise ShardError(f"{name}: not a readable Parquet file: {reason}") from error
    except TypeError as error:
        raise TypeError(f"read_kwargs: {error}") from error


class UnfitTimestamps(MmAssetsError, ValueError):
    """INT96 timestamps that no unit of Arrow holds; the message names the column."""


@contextmanager
def parquet_file(file: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, and close it at the end; of a remote file only requested ranges are read."""
    if not is_remote(file):
        with pq.ParquetFile(regular_file(file), pre_buffer=False) as parquet:
            yield parquet
        return
    fs, path = filesystem(file)
    with fs.open(path, "rb", cache_type="none") as remote:  # caches read ahead by megabytes
        yield pq.ParquetFile(pa.PythonFile(remote, mode="r"), pre_buffer=False)


def open_checked(source: Any, **arguments: Any) -> pq.ParquetFile:
    """Open a Parquet file with `refuse_bad_footer`, and INT96 timestamps in a unit that holds them.

    Args:
        source: path or file object.
        arguments: of `pyarrow.parquet.ParquetFile`.

    Raises:
        UnfitTimestamps: see `_int96_unit`. Others as `refuse_bad_footer`.
    """
    file = pq.ParquetFile(source, **arguments)
    refuse_bad_footer(source, file.metadata)
    leaves = [at for at in range(len(file.schema)) if file.schema.column(at).physical_type == "INT96"]
    if leaves and arguments.get(_INT96_UNIT) is None:
        arguments = {**arguments, "metadata": file.metadata}
        unit = _int96_unit(lambda unit: pq.ParquetFile(source, **{**arguments, _INT96_UNIT: unit}), leaves)
        file = pq.ParquetFile(source, **{**arguments, _INT96_UNIT: unit})
    return file


def _int96_unit(reopen: Callable[[str], pq.ParquetFile], leaves: Sequence[int]) -> str:
    """Return the unit for all INT96 columns of a file: ns if each value fits, else us.

    They have no statistics, so all values are read. pyarrow lets a value wrap that its unit does not hold;
    seconds hold every one.

    Args:
        reopen: opens the file with these columns in a unit.
        leaves: their numbers among Parquet's leaf columns.

    Raises:
        UnfitTimestamps: One has years beyond those of nanoseconds, and one has nanoseconds; or a value fits
            neither unit.
    """
    files = [reopen(unit) for unit in ("ns", "us", "s")]
    fits = {"ns": True, "us": True}
    for leaf in leaves:
        for group in range(files[0].num_row_groups):
            readings = (file.reader.iter_batches(ROWS_AT_ONCE, [group], [leaf], False) for file in files)
            for batches in zip(*readings, strict=True):
                ns, us, s = (_timestamps(batch.column(0)) for batch in batches)
                fits["ns"] &= bool((ns // 1_000_000_000 == s).all())
                # Wrapping alike, the difference is right though ``ns`` is not.
                fits["us"] &= bool((us // 1_000_000 == s).all() and (ns == us * 1000).all())
            if not any(fits.values()):
                raise UnfitTimestamps(
                    f"column {files[0].schema.column(leaf).path!r}: INT96 timestamps of this file fit "
                    "neither nanoseconds (years 1678 to 2261) nor microseconds; "
                    "write them as TIMESTAMP of one unit"
                )
    return next(unit for unit, is_fit in fits.items() if is_fit)


def _timestamps(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the timestamps inside an array that has no other values."""
    if pa.types.is_timestamp(array.type):
        return np.asarray(array.drop_null().cast(pa.int64()))
    return _timestamps(array.flatten()[0] if pa.types.is_struct(array.type) else array.flatten())


def refuse_bad_footer(source: Any, metadata: pq.FileMetaData) -> None:
    """Raise an error for a footer that contradicts itself; no data is read.

    Over a footer that is wrong about a column, pyarrow's column metadata access ends the process. A read of
    no rows raises instead.

    Raises:
        OSError: a column cannot be read.
        ValueError: the row counts contradict each other, or a name is not UTF-8.
    """
    rows = sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    if rows != metadata.num_rows:
        raise ValueError(f"its row groups have {rows} rows, and it {metadata.num_rows}")
    file = pq.ParquetFile(source, metadata=metadata, pre_buffer=False, buffer_size=_READ_BUFFER)
    columns = list(range(metadata.num_columns))
    # Without columns, pyarrow's read of no rows divides by zero and ends the process.
    for group in range(metadata.num_row_groups if columns else 0):
        for _ in file.reader.iter_batches(0, [group], columns, use_threads=False):
            break


def checked(read: Callable[[], T], name: str, file: pq.ParquetFile | None = None) -> T:
    """Return what ``read``, of a file, returns.

    Raises:
        ShardError: pyarrow cannot read the data; the message names the file.
    """
    try:
        return read()
    except _DAMAGE as error:
        if is_of_store(error):
            raise
        reason = error if file is None else unreadable_dictionary(file, error) or error
        raise ShardError(f"{name}: damaged Parquet data: {reason}") from error


def unreadable_dictionary(file: pq.ParquetFile, error: Exception) -> str | None:
    """Return which rows and column are meant if pyarrow refuses text that is not UTF-8; else None.

    It reads any other column of text unchecked.
    """
    if "UTF8" not in str(error):
        return None
    for name in [field.name for field in file.schema_arrow if "dictionary" in str(field.type)]:
        first = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            try:
                for _ in file.iter_batches(
                    ROWS_AT_ONCE, row_groups=[group], columns=[name], use_threads=False
                ):
                    pass
            except pa.ArrowInvalid:
                return f"rows {first} to {first + rows - 1}, column {name!r}: text that is not UTF-8"
            first += rows
    return None


def read_batches(
    file: pq.ParquetFile, group: int, columns: list[str], rows: int, name: str, **arguments: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, ``rows`` at a time.

    Raises:
        ShardError: as `checked`, and when there are fewer rows than the footer says.
    """
    batches = file.iter_batches(rows, row_groups=[group], columns=columns, **arguments)
    found = 0
    while (batch := checked(lambda: next(batches, None), name, file)) is not None:
        found += batch.num_rows
        yield batch
    if found != (expected := file.metadata.row_group(group).num_rows):
        raise ShardError(f"{name}: damaged Parquet data: row group {group} has {found} rows, not {expected}")


def column_chunks(
    uri: str, file: pq.ParquetFile, name: str, column: str, options: StorageOptions | None
) -> list[pa.Array]:
    """Return all values of one column of an open file.

    Raises:
        ShardError: as `checked`.
    """
    if not is_remote(uri) or file.metadata.num_row_groups == 1:
        return checked(lambda: file.read([column], use_threads=False), name, file).column(0).chunks
    # Fetches the ranges of the column at once, without the images between them.
    fs, path = filesystem(uri, options)
    with open_parquet_file(path, fs=fs, columns=[column], engine="pyarrow") as parts:
        return checked(lambda: pq.ParquetFile(parts).read([column], use_threads=False), name).column(0).chunks


def possible_groups(metadata: pq.FileMetaData, sample_id: str) -> Iterator[int]:
    """Yield the row groups whose statistics leave room for a sample id."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = map(group.column, range(group.num_columns))
        chunk = next((c for c in chunks if c.path_in_schema == "sample_id"), None)
        bounds = chunk.statistics if chunk is not None and chunk.is_stats_set else None
        least = bounds.min if bounds is not None and bounds.has_min_max else None
        if bounds is not None and isinstance(least, str) and not least <= sample_id <= bounds.max:
            continue
        yield number


def unpacked_bytes(group: pq.RowGroupMetaData, columns: Iterable[str]) -> int:
    """Return the bytes of columns of a row group, as they are once they are unpacked.

    Raises:
        ValueError: the footer is damaged.
    """
    starts = tuple(f"{name}." for name in columns)
    chunks = map(group.column, range(group.num_columns))
    return sum(c.total_uncompressed_size for c in chunks if f"{c.path_in_schema}.".startswith(starts))


def rows_within(nbytes: int, mean: int) -> int:
    """Return how many rows of ``mean`` bytes to read at a time to stay within ``nbytes``: a power of two."""
    rows = min(max(nbytes // max(mean, 1), 1), ROWS_AT_ONCE)
    # Our pages have 16 rows, and a batch with rows of two pages is copied once more.
    return 1 << (rows.bit_length() - 1)


class UnreadableFile(MmAssetsError, ValueError):
    """A file that exists but is not what was written; the message names it."""


def publish_table(uri: str, table: pa.Table) -> None:
    """Write a small table in one atomic step."""
    with staged(uri) as file:
        pq.write_table(table, file.path, compression="zstd")
        file.publish()


def read_buffer(data: bytes, columns: Sequence[str] | None = None, *, verify: bool = False) -> pa.Table:
    """Return some columns of a Parquet file in memory; None: all of them.

    This thread alone reads. A thread of Arrow may be the last one to hold ``data``, and if it lets go of them
    while the interpreter ends, it cannot have Python's lock, and aborts the process.

    Args:
        data: the file.
        columns: names.
        verify: check the checksums of its pages.

    Raises:
        UNREADABLE: (one of these classes) the data is no such table.
    """
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=verify)
    names = None if columns is None else list(columns)
    table = file.read(names, use_threads=False)
    return table if names is None else table.select(names)


def read_small_table(uri: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read some columns of a small table; None: all of them.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableFile: the file is torn, or another table.
    """
    with open_binary(uri) as file:
        data = file.read()
    try:
        return read_buffer(data, columns)
    except UNREADABLE as error:
        raise UnreadableFile(f"{uri}: damaged: {' '.join(str(error).split())}") from error


SCHEMA_VERSION = "1"
VERSION = "mm_assets:schema_version"
SHARD = "mm_assets:shard"  # the partition's name; the file's name may be only a digest of it
# The schema before nested types were replaced; only in files that have such types.
_ORIGINAL = "mm_assets:arrow_schema"
_ARROW = "ARROW:schema"
# What Arrow raises for a type that Parquet cannot store.
REFUSALS = (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError)


def stored_schema(schema: pa.Schema, shard: str) -> pa.Schema:
    """Return the schema to write: types that Parquet can store, schema version and shard in the metadata."""
    metadata = {**(schema.metadata or {}), VERSION: SCHEMA_VERSION, SHARD: shard}
    fields = [field.with_type(_storable(field.type)) for field in schema]
    if fields != list(schema):
        metadata[_ORIGINAL] = schema_to_text(schema)
    return pa.schema(fields, metadata=metadata)


# Column of a file whose images lie in the file of the same name in another folder beside its own: of each
# such image that file (below the folder of both), its size, and the xxh3-128 of its bytes in hex.
IMAGE_REFS = "binary_ref"
IMAGE_REF = pa.struct([("path", pa.string()), ("bytes", pa.int64()), ("digest", pa.string())])
_IMAGES_FOLDER = "curated"


def with_image_refs(schema: pa.Schema) -> pa.Schema:
    """Return a `stored_schema` with the column `IMAGE_REFS`, which `original_schema` leaves out.

    Raises:
        ValueError: a column has that name.
    """
    if IMAGE_REFS in schema.names:
        raise ValueError(f"column {IMAGE_REFS!r}: the name of the references to images: rename it")
    metadata = {_ORIGINAL.encode(): schema_to_text(schema), **(schema.metadata or {})}
    return schema.append(pa.field(IMAGE_REFS, IMAGE_REF)).with_metadata(metadata)


def refers(file: pq.ParquetFile) -> bool:
    """Return whether images of a file of ours lie in another file."""
    return IMAGE_REFS in file.schema_arrow.names and IMAGE_REFS not in original_schema(file).names


def place_of_images(uri: str) -> str:
    """Return the file with the images of a file that `refers` to them. It is no choice of the data."""
    folder, _, name = absolute(uri).rpartition("/")
    return join(folder.rpartition("/")[0] or "/", _IMAGES_FOLDER, name)


def image_keys(rows: pa.Table) -> pa.ChunkedArray:
    """Return position and sample id of each image, as a text that no other image of a file has."""
    position, sample_id, modality = (
        rows.column(name).cast(pa.large_string()) for name in ("position", "sample_id", "modality")
    )
    keys = pc.binary_join_element_wise(position, sample_id, pa.scalar(":", pa.large_string()))
    return pc.if_else(pc.equal(modality, "image"), keys, pa.scalar(None, pa.large_string()))


def original_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the schema that a file of ours was written in; for files of other tools, `schema_with_enums`."""
    metadata = file.metadata.metadata or {}
    text = metadata.get(_ORIGINAL.encode()) or metadata.get(_ARROW.encode())
    if VERSION.encode() not in metadata or text is None:
        return schema_with_enums(file)
    return schema_from_text(text)


def schema_with_enums(file: pq.ParquetFile) -> pa.Schema:
    """Return the schema that Arrow reads, with text for columns of ENUM, which it takes for bytes."""
    leaves = map(file.schema.column, range(len(file.schema)))
    enums = {leaf.path for leaf in leaves if leaf.converted_type == "ENUM" and leaf.max_repetition_level == 0}
    return pa.schema(
        [
            f.with_type(pa.string()) if f.name in enums and pa.types.is_binary(f.type) else f
            for f in file.schema_arrow
        ],
        metadata=file.schema_arrow.metadata,
    )


def cast(column: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> Any:
    """Cast a column without loss; whether bytes are UTF-8 is looked at by who reads the rows."""
    return pc.cast(column, options=pc.CastOptions(target_type=type_, allow_invalid_utf8=True))


def restore(table: pa.Table, target: pa.Schema) -> pa.Table:
    """Return a table read from a file in the types of `original_schema`."""
    if table.schema.equals(target, check_metadata=True):
        return table
    columns = [_restored(column, field) for column, field in zip(table.columns, target, strict=True)]
    return pa.Table.from_arrays(columns, schema=target)


def refused_column(rows: pa.Table) -> str:
    """Return ``"column 'x': "`` for the first column that Parquet cannot store; empty without one."""
    for name in rows.column_names:
        try:
            pq.write_table(rows.select([name]), pa.BufferOutputStream())
        except REFUSALS:
            return f"column {name!r}: "
    return ""


def _restored(column: pa.ChunkedArray, target: pa.Field) -> pa.ChunkedArray:
    if column.type.equals(target.type, check_metadata=True):
        return column
    stored = target.with_type(_storable(target.type))
    column = cast(filled_column(column), stored.type)
    if stored.type == target.type:
        return column
    # Arrow cannot cast to nulls, or to dictionaries of anything but text.
    return pa.chunked_array([json_codec.decode(json_codec.encode(column, stored), target)], target.type)


def _storable(type_: pa.DataType) -> pa.DataType:
    is_struct = pa.types.is_struct(type_)

    def storable(field: pa.Field) -> pa.Field:
        # Arrow 26 cannot read a fixed-size list that is never null inside a null struct.
        is_nullable = field.nullable or (is_struct and pa.types.is_fixed_size_list(field.type))
        return field.with_type(_storable_inside(field.type)).with_nullable(is_nullable)

    return with_children(type_, storable)


def _storable_inside(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_null(type_):
        return pa.bool_()
    if pa.types.is_dictionary(type_) and not is_text(type_.value_type):
        return _storable_inside(type_.value_type)
    return _storable(type_)


_ROW = re.compile(r"row (\d{1,18})(?:, .*)?", re.ASCII | re.DOTALL)


def row_name(row: int, item: str | None = None) -> str:
    """Return ``row 17``, or ``row 17, images[3]``; rows are counted from 0 over the whole file.

    It is not the name of a tar member.
    """
    return f"row {row}" if item is None else f"row {row}, {item}"


def row_of(member: str | None) -> int | None:
    """Return the row number that the member of a locator names; None for any other member."""
    match = _ROW.fullmatch(member or "")
    return None if match is None else int(match[1])


class ColumnIntegers:
    """Tallies of the smallest and largest value of each int64 column, by column name."""

    def __init__(self, schema: pa.Schema) -> None:
        self.tallies = {field.name: FieldTally() for field in schema if pa.types.is_int64(field.type)}

    def observe(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add the values of some rows."""
        for name, tally in self.tallies.items():
            for value in pc.min_max(rows.column(name)).as_py().values():
                tally.observe(value)


_READ_AT_ONCE = 4 << 20  # bytes


def rows_as_json(uri: str, rows: Collection[int]) -> dict[int, bytes]:
    """Return the values of these rows by row number, without columns of bytes; missing rows are left out.

    A column with text that is not UTF-8 is written in base64.

    Raises:
        ShardError: the file cannot be read.
    """
    file = open_parquet(uri, uri, None, {})
    try:
        columns = [
            column.path
            for column in map(file.schema.column, range(len(file.schema)))
            if not _is_bytes(column)
        ]
        found: dict[int, bytes] = {}
        first = 0
        for group in range(file.metadata.num_row_groups):
            row_group = file.metadata.row_group(group)
            if any(first <= row < first + row_group.num_rows for row in rows):
                mean = row_group.total_byte_size // max(row_group.num_rows, 1)
                start = first
                for batch in read_batches(
                    file, group, columns, rows_within(_READ_AT_ONCE, mean), uri, use_threads=False
                ):
                    for row in set(range(start, start + batch.num_rows)).intersection(rows):
                        found[row] = _as_json(batch.slice(row - start, 1))
                    start += batch.num_rows
            first += row_group.num_rows
        return found
    finally:
        file.close(force=True)


def _is_bytes(column: pq.ColumnSchema) -> bool:
    return column.physical_type == "BYTE_ARRAY" and column.logical_type.type == "NONE"


def _as_json(row: pa.RecordBatch) -> bytes:
    values = {field.name: _value(row.column(index), field) for index, field in enumerate(row.schema)}
    return dumps(values).encode("utf-8", "backslashreplace")


def _value(column: pa.Array, field: pa.Field) -> Any:
    try:
        return json_codec.encode(column, field)[0]
    except UnicodeDecodeError:
        plain = with_bytes(column.take(pa.array([0])))
        return json_codec.encode(plain, pa.field(field.name, plain.type))[0]
    except json_codec.NotEncodable:
        return str(column[0])
