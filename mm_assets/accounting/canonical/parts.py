"""Rows of an output as they are read, with image bytes apart, so that these are digested while in cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from mm_assets.formats.error_lines import cause_line
from mm_assets.formats.storage import NoRegularFile
from mm_assets.interleaved.buffers import binary_views
from mm_assets.interleaved.digest import BLOBS, Blob
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA

BLOB_FIELD: pa.Field = INTERLEAVED_SCHEMA.field(BLOBS)
_BLOB_INDEX = INTERLEAVED_SCHEMA.get_field_index(BLOBS)


@contextmanager
def naming_file(uri: str) -> Iterator[None]:
    """Raise what pyarrow raises for a damaged file as `ShardError` that names the file."""
    try:
        yield
    except (FileNotFoundError, NoRegularFile):
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        raise ShardError(f"{uri}: pyarrow cannot read it: {cause_line(error, uri)}") from error


def blob_index(schema: pa.Schema) -> int:
    """Return the index of the column `BLOBS` if it is of bytes and occurs once, else -1."""
    index = int(schema.get_field_index(BLOBS))  # -1 also when there are two
    return index if index >= 0 and schema.field(index).type in (pa.binary(), pa.large_binary()) else -1


@dataclass(frozen=True)
class RowPart:
    """Some rows, possibly with their image bytes apart.

    Attributes:
        table: the rows; with ``blobs``, without the column `BLOBS`.
        blobs: the values of that column in order, a few rows at a time. They are read on demand, once, and
            must be consumed before the next part.
        index: position of the column.
        field: the column.
    """

    table: pa.Table
    blobs: Iterator[pa.Array | list[bytes | None]] | None = None
    index: int = _BLOB_INDEX
    field: pa.Field = BLOB_FIELD

    @property
    def schema(self) -> pa.Schema:
        """The schema with all columns."""
        return self.table.schema if self.blobs is None else self.table.schema.insert(self.index, self.field)

    def values(self) -> Iterator[Blob | None] | None:
        """Return the blobs one by one; None if the table has them."""
        if self.blobs is None:
            return None
        return chain.from_iterable(
            binary_views(piece) if isinstance(piece, pa.Array) else piece for piece in self.blobs
        )

    def tables(self) -> Iterator[pa.Table]:
        """Yield the same rows with all columns, some megabytes at a time."""
        if self.blobs is None:
            yield self.table
            return
        start = 0
        for piece in self.blobs:
            array = (
                piece.cast(self.field.type)
                if isinstance(piece, pa.Array)
                else pa.array(piece, self.field.type)
            )
            yield self.table.slice(start, len(array)).add_column(self.index, self.field, array)
            start += len(array)
