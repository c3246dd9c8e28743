"""Write and read interleaved data in each format, the same way."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.formats.partitions import relative_root
from mm_assets.formats.raw_shards import RawLocations
from mm_assets.formats.registry import FORMATS, reader_for, writer_for
from mm_assets.formats.reports import WriteReport
from mm_assets.interleaved import INTERLEAVED_SCHEMA, InterleavedBatch
from mm_assets.model.samples import BatchStream

__all__ = ["FORMATS", "as_table", "batch_of", "item", "raw_streams", "read", "table_of", "write"]


def item(sample_id: str, position: int = -1, modality: str | None = None, **values: Any) -> dict[str, Any]:
    """One row; the modality is told by the position unless stated."""
    kind = modality or ("metadata" if position < 0 else "text")
    return {"sample_id": sample_id, "position": position, "modality": kind, **values}


def table_of(rows: Sequence[dict[str, Any]], extras: Sequence[pa.Field] = ()) -> pa.Table:
    schema = pa.schema([*INTERLEAVED_SCHEMA, *extras])
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema=schema
    )


def batch_of(
    rows: Sequence[dict[str, Any]], extras: Sequence[pa.Field] = (), **values: Any
) -> InterleavedBatch:
    return InterleavedBatch(table_of(rows, extras), **values)


def write(kind: str, path: Path | str, batches: Any, **options: Any) -> WriteReport:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return writer_for(kind, str(path), **options).write(batches)


def read(kind: str, path: Path | str, **options: Any) -> pa.Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return as_table(reader_for(kind, str(path), **options))


def as_table(batches: Any) -> pa.Table:
    """All batches as one table; their schemas must be equal, metadata too."""
    tables = [batch.data for batch in batches]
    for table in tables:
        assert table.schema.equals(tables[0].schema, check_metadata=True)
    return pa.concat_tables(tables)


def raw_streams(locations: str, missing_keys: str = "skip") -> Iterator[tuple[str, BatchStream]]:
    """Each raw shard of these locations with its stream, as the graph reads it."""
    found = RawLocations(locations, missing_keys=missing_keys)
    for key, shard in found.shards().items():
        reader = reader_for(
            "webdataset",
            [shard.uri],
            quarantine_errors=True,
            relative_to=relative_root(found.roots()),
            roots=found.roots(),
        )
        yield key, reader.open(reader.partitions()[0])
