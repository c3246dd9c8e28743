"""Plain tables (not interleaved data) as small Parquet files that appear whole."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.storage import StorageOptions, open_binary, staged
from mm_assets.interleaved.errors import MmAssetsError

# What reading bytes that a power cut or another hand has left may raise; Arrow has OSError for damaged
# Parquet.
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


class UnreadableFile(MmAssetsError, ValueError):
    """A file is there, and is not what was written; the message names it."""


def publish_table(uri: str, table: pa.Table, options: StorageOptions | None = None) -> int:
    """Write a small table in one atomic step; returns the file's bytes."""
    with staged(uri, options) as file:
        pq.write_table(table, file.path, compression="zstd")
        return file.publish()


def read_small_table(uri: str, columns: Sequence[str], options: StorageOptions | None = None) -> pa.Table:
    """Some columns of a table.

    Raises ``FileNotFoundError``, and `UnreadableFile` for what is torn or another table.
    """
    with open_binary(uri, options) as file:
        data = file.read()
    try:
        return pq.read_table(pa.BufferReader(data), columns=list(columns)).select(list(columns))
    except UNREADABLE as error:
        raise UnreadableFile(f"{uri}: damaged: {' '.join(str(error).split())}") from error
