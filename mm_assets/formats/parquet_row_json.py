"""Single rows of a Parquet file as JSON for people to read: without bytes, and with invalid text kept."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.parquet_file import open_parquet, read_batches, rows_within
from mm_assets.formats.storage import StorageOptions
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.json_values import dumps
from mm_assets.interleaved.text_validity import with_bytes

_READ_AT_ONCE = 4 << 20  # bytes


def rows_as_json(uri: str, rows: Collection[int], options: StorageOptions | None = None) -> dict[int, bytes]:
    """Return the values of these rows by row number, without columns of bytes; missing rows are left out.

    A column with text that is not UTF-8 is written in base64.

    Raises:
        ShardError: the file cannot be read.
    """
    file = open_parquet(uri, uri, options, {})
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
