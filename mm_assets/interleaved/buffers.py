"""Zero-copy views of the values of a binary Arrow array."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa


def binary_views(chunk: pa.Array) -> list[memoryview | None]:
    """One view into the array's own buffer per value, None for null. Valid as long as the array lives."""
    if chunk.null_count == len(chunk):
        return [None] * len(chunk)
    offset_format: Literal["q", "i"] = "q" if pa.types.is_large_binary(chunk.type) else "i"
    _, offset_buffer, data = chunk.buffers()
    offsets = memoryview(offset_buffer).cast("B").cast(offset_format)[chunk.offset : chunk.offset + len(chunk) + 1]
    payload = memoryview(data) if data is not None else memoryview(b"")
    valid = chunk.is_valid().to_pylist()
    return [payload[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(chunk))]
