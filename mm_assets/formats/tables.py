"""Plain tables (not interleaved data) as Parquet files that appear whole."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.storage import StorageOptions, staged


def publish_table(uri: str, table: pa.Table, options: StorageOptions | None = None) -> int:
    """Write a small table in one atomic step; returns the file's bytes."""
    with staged(uri, options) as file:
        pq.write_table(table, file.path, compression="zstd")
        return file.publish()
