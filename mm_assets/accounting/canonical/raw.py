"""Reader of raw shards of other tools for comparisons; it is our own reader, as no other exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.formats.partitions import Partition, common_root, partition_name
from mm_assets.formats.raw_reader import RawReader
from mm_assets.formats.storage import StorageOptions

_BYTES_AT_ONCE = 8 << 20


def raw_parts(
    uri: str,
    partition: str | None,
    relative_to: str | None,
    layout: Mapping[str, Any],
    options: StorageOptions | None,
) -> Iterator[RowPart]:
    """Yield the rows of one file, in types inferred from its values or declared in it."""
    reader = RawReader(
        (), max_batch_bytes=_BYTES_AT_ONCE, relative_to=relative_to, storage_options=options, **layout
    )
    name = partition_name(uri, common_root([uri])) if partition is None else partition
    stream = reader.open(Partition(name, (uri,)))
    yield RowPart(pa.Table.from_batches([], stream.schema))
    for batch in stream:
        yield RowPart(batch.data)
