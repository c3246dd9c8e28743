"""A digest of items that is independent of row order, batch cuts and file format."""

from __future__ import annotations

import pyarrow as pa
import xxhash

from mm_assets.interleaved import json_codec
from mm_assets.interleaved.buffers import binary_views
from mm_assets.interleaved.json_values import dumps, is_json

_MODULUS = 1 << 128
_HAS_BLOB = b"\0"  # no JSON text ends in it


class ContentDigest:
    """Sum modulo 2^128 of one xxh3-128 per row over every column's name, type and value (nulls left out).

    The order of columns does not count, nor does a column without values: formats and tables of many shards differ there.
    A sum, not an XOR, so that two equal extra rows do not cancel. It guards against loss, not against an attacker.
    """

    def __init__(self) -> None:
        self._total = 0

    def observe(self, table: pa.Table) -> None:
        """Add the rows of a table."""
        heads = _row_heads(table)
        blobs = table.column("binary_content") if "binary_content" in table.column_names else None
        row = 0
        for chunk in blobs.chunks if blobs is not None else [pa.nulls(table.num_rows, pa.large_binary())]:
            for view in binary_views(chunk):
                digest = xxhash.xxh3_128(heads[row])
                if view is not None:
                    digest.update(_HAS_BLOB)  # null and no bytes are two values
                    digest.update(view)
                self._total += digest.intdigest()
                row += 1
        self._total %= _MODULUS

    def hexdigest(self) -> str:
        return f"{self._total:032x}"


def _row_heads(table: pa.Table) -> list[bytes]:
    names = sorted(name for name in table.column_names if name != "binary_content")
    fields = [table.schema.field(name) for name in names]
    encoded = [json_codec.encode(table.column(name), field) for name, field in zip(names, fields, strict=True)]
    labels = [f"{field.name}:{'json' if is_json(field) else field.type}" for field in fields]
    heads = []
    for values in zip(*encoded, strict=True):
        present = [(label, value) for label, value in zip(labels, values, strict=True) if value is not None]
        heads.append(dumps(present).encode("utf-8", "surrogatepass"))
    return heads
