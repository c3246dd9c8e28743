"""Parquet files, opened for reading a few rows at a time, and small tables written and read as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.parquet import open_parquet_file

from mm_assets.formats.error_lines import cause_line
from mm_assets.formats.storage import (
    StorageOptions,
    filesystem,
    is_remote,
    open_binary,
    regular_file,
    staged,
)
from mm_assets.formats.store_errors import is_of_store
from mm_assets.interleaved.errors import MmAssetsError, ShardError

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
    if not is_remote(uri):
        return checked(lambda: file.read([column], use_threads=False), name, file).column(0).chunks
    # Fetches the ranges of the column at once, without the images between them.
    fs, path = filesystem(uri, options)
    with open_parquet_file(path, fs=fs, columns=[column], engine="pyarrow") as parts:
        return checked(lambda: pq.ParquetFile(parts).read([column], use_threads=False), name).column(0).chunks


def possible_groups(metadata: pq.FileMetaData, column: str, value: str) -> Iterator[int]:
    """Yield the row groups whose statistics leave room for a value of a column of text."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = map(group.column, range(group.num_columns))
        chunk = next((c for c in chunks if c.path_in_schema == column), None)
        bounds = chunk.statistics if chunk is not None and chunk.is_stats_set else None
        least = bounds.min if bounds is not None and bounds.has_min_max else None
        if bounds is not None and isinstance(least, str) and not least <= value <= bounds.max:
            continue
        yield number


def rows_within(nbytes: int, mean: int) -> int:
    """Return how many rows of ``mean`` bytes to read at a time to stay within ``nbytes``: a power of two."""
    rows = min(max(nbytes // max(mean, 1), 1), ROWS_AT_ONCE)
    # Our pages have 16 rows, and a batch with rows of two pages is copied once more.
    return 1 << (rows.bit_length() - 1)


class UnreadableFile(MmAssetsError, ValueError):
    """A file that exists but is not what was written; the message names it."""


def publish_table(uri: str, table: pa.Table, options: StorageOptions | None = None) -> int:
    """Write a small table in one atomic step; return the bytes of the file."""
    with staged(uri, options) as file:
        pq.write_table(table, file.path, compression="zstd")
        return file.publish()


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


def read_small_table(
    uri: str, columns: Sequence[str] | None = None, options: StorageOptions | None = None
) -> pa.Table:
    """Read some columns of a small table; None: all of them.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableFile: the file is torn, or another table.
    """
    with open_binary(uri, options) as file:
        data = file.read()
    try:
        return read_buffer(data, columns)
    except UNREADABLE as error:
        raise UnreadableFile(f"{uri}: damaged: {' '.join(str(error).split())}") from error
