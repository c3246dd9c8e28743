"""Parquet files opened for reading a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.reader import ShardError
from mm_assets.formats.storage import StorageOptions, filesystem, is_remote, local_path

T = TypeVar("T")

ROWS_AT_ONCE = 4096
_READ_BUFFER = 1 << 16  # the processor's cache holds it until it is copied into its place
_MAX_LISTED = 100_000  # columns, or row groups: what a footer lists takes kilobytes each


def open_parquet(uri: str, name: str, options: StorageOptions | None, opening: Mapping[str, Any]) -> pq.ParquetFile:
    """Open a file, which messages call ``name``, with the arguments ``opening`` of `pyarrow.parquet.ParquetFile`.

    Raises ``FileNotFoundError``, `ShardError` for a file that is no Parquet, and ``TypeError`` for an argument that there is not.
    """
    arguments = {"pre_buffer": is_remote(uri), "thrift_container_size_limit": _MAX_LISTED, **opening}
    try:
        if not is_remote(uri):
            return pq.ParquetFile(local_path(uri), **{"buffer_size": _READ_BUFFER, **arguments})
        fs, path = filesystem(uri, options)
        return pq.ParquetFile(pa.PythonFile(fs.open(path, "rb"), mode="r"), **arguments)
    except TypeError as error:
        raise TypeError(f"read_kwargs: {error}") from error
    except FileNotFoundError:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        reason = f"its footer lists more than {_MAX_LISTED} columns or row groups" if "Exceeded size limit" in str(error) else str(error)
        raise ShardError(f"{name}: not a readable Parquet file: {reason}") from error


def checked(read: Callable[[], T], name: str) -> T:
    """What ``read`` gives. Raises `ShardError` that names the file for what pyarrow cannot read."""
    try:
        return read()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise ShardError(f"{name}: damaged Parquet data: {error}") from error


def read_batches(file: pq.ParquetFile, group: int, columns: list[str], rows: int, name: str, **arguments: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, ``rows`` at a time. Raises `ShardError` as `checked` does."""
    batches = file.iter_batches(rows, row_groups=[group], columns=columns, **arguments)
    while (batch := checked(lambda: next(batches, None), name)) is not None:
        yield batch


def rows_within(nbytes: int, mean: int) -> int:
    """How many rows of ``mean`` bytes are read at a time, so that they take no more than ``nbytes``: a power of two."""
    rows = min(max(nbytes // max(mean, 1), 1), ROWS_AT_ONCE)
    return 1 << (rows.bit_length() - 1)  # our pages have 16 rows: a batch with rows of two pages is copied once more
