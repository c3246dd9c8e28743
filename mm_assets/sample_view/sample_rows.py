"""The rows of samples, images included, from a Parquet file or a Lance table, a few at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.parquet_file import (
    checked,
    column_chunks,
    open_parquet,
    possible_groups,
    read_batches,
    rows_within,
)
from mm_assets.formats.parquet_types import original_schema, restore
from mm_assets.formats.storage import StorageOptions

_BYTES_AT_ONCE = 8 << 20
_LANCE_ROWS = 16
_HINTS = 3
_IDS_FOR_HINTS = 1 << 20


def parquet_rows(
    uri: str, sample_ids: Collection[str], options: StorageOptions | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of samples in a Parquet file with a row per item; none of those that are not there.

    Row groups are chosen by their statistics, then by their column ``sample_id``. One that has such a sample
    is read up to the last row.

    Raises:
        ShardError: the file is damaged.
    """
    with closing(open_parquet(uri, uri, options, {})) as file:
        schema = original_schema(file)
        wanted_ids = pa.array(sample_ids, pa.large_string())
        found_in = (possible_groups(file.metadata, "sample_id", sample_id) for sample_id in sample_ids)
        for group in sorted(set(chain.from_iterable(found_in))):
            read_ids = partial(file.read_row_group, group, columns=["sample_id"], use_threads=False)
            ids = checked(read_ids, uri)
            mask = pc.is_in(ids.column("sample_id").cast(pa.large_string()), wanted_ids)
            wanted = pc.indices_nonzero(mask)
            if not len(wanted):
                continue
            last, seen = wanted[-1].as_py(), 0
            row_group = file.metadata.row_group(group)
            rows = rows_within(_BYTES_AT_ONCE, row_group.total_byte_size // max(row_group.num_rows, 1))
            names = file.schema_arrow.names
            for batch in read_batches(file, group, names, rows, uri, use_threads=False):
                found = pa.Table.from_batches([batch]).filter(mask.slice(seen, batch.num_rows))
                seen += batch.num_rows
                if found.num_rows:
                    yield restore(found.select(schema.names), schema)
                if seen > last:
                    break


def parquet_ids(uri: str, options: StorageOptions | None = None) -> pa.ChunkedArray:
    """Return the column ``sample_id`` of a Parquet file.

    Raises:
        ShardError: the file is damaged.
    """
    with closing(open_parquet(uri, uri, options, {})) as file:
        chunks = column_chunks(uri, file, uri, "sample_id", options)
    return pa.chunked_array([chunk.cast(pa.large_string()) for chunk in chunks], pa.large_string())


def lance_rows(uri: str, sample_id: str) -> Iterator[pa.Table]:
    """Yield the rows of a sample in a Lance table, which its index finds if it has one.

    Raises:
        ShardError: the table is damaged.
    """
    from mm_assets.formats.lance.damage import naming_table, opened
    from mm_assets.formats.lance.reader import lance_options
    from mm_assets.formats.lance.snapshot import ids_predicate
    from mm_assets.formats.lance.storage_types import from_storage, with_original_names

    with naming_table(uri):
        dataset = opened(uri, storage_options=lance_options(uri, None))
        names = with_original_names(dataset.schema).names
        scanner = dataset.scanner(
            filter=ids_predicate([sample_id]), batch_size=_LANCE_ROWS, batch_readahead=1
        )
        for batch in scanner.to_batches():
            yield from_storage(pa.Table.from_batches([batch])).rename_columns(names)


def alike(ids: Iterator[pa.ChunkedArray], sample_id: str) -> list[str]:
    """Return a few ids that contain the given one, whatever the case; of the first million that are given."""
    found: dict[str, None] = {}
    looked_at = 0
    for column in ids:
        if not sample_id.strip() or len(found) >= _HINTS or looked_at >= _IDS_FOR_HINTS:
            break
        text = column.cast(pa.large_string())
        looked_at += len(text)
        matches = text.filter(pc.match_substring(text, sample_id, ignore_case=True))
        found |= dict.fromkeys(matches.unique()[:_HINTS].to_pylist())
    return list(found)[:_HINTS]
