"""Canonical reader of files of others, whose rows or members are documents.

It uses our own reader, as no other library reads them as samples.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from mm_assets.accounting.canonical.location import CanonicalLocation
from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.formats.partitions import Partition, common_root, partition_name
from mm_assets.formats.registry import reader_for

_BYTES_AT_ONCE = 8 << 20


def raw_parts(source: CanonicalLocation) -> Iterator[RowPart]:
    """Yield the rows of one file, in the types that it states, or else those inferred from its values."""
    uri = str(source.uri)
    reader = reader_for(
        source.kind,
        [],
        max_batch_bytes=_BYTES_AT_ONCE,
        relative_to=source.relative_to,
        storage_options=source.options,
        **source.layout,
    )
    name = partition_name(uri, common_root([uri])) if source.partition is None else source.partition
    stream = reader.open(Partition(name, (uri,)))
    yield RowPart(pa.Table.from_batches([], stream.schema))
    for batch in stream:
        yield RowPart(batch.data)
