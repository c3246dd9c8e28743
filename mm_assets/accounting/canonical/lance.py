"""Canonical reader of interleaved Lance tables, with the scanner of `lance` alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical.parts import RowPart, blob_index
from mm_assets.formats.error_lines import cause_line
from mm_assets.formats.storage import StorageOptions
from mm_assets.interleaved.digest import BLOBS
from mm_assets.interleaved.errors import ShardError

# A scanner reads all its rows ahead, up to hundreds of megabytes, so each scan is limited to this.
_BYTES_AT_ONCE = 6 << 20
_BATCHES = 3  # per scan of blobs: a batch is still in the processor's cache when it is digested
_ROWS_AT_ONCE = 4096
_IDS_PER_QUERY = 10_000
_LIMITS = {"batch_readahead": 1, "fragment_readahead": 1, "io_buffer_size": _BYTES_AT_ONCE}


def lance_parts(
    uri: str, partition: str | None = None, options: StorageOptions | None = None
) -> Iterator[RowPart]:
    """Yield the rows of a table, or of one of its partitions, in the types of the table.

    The rows of a partition are found by its records (`mm_assets.formats.lance.partitions`). A partition that
    the table lacks has no rows.
    """
    import lance

    from mm_assets.formats.lance.damage import unreadable_text
    from mm_assets.formats.lance.location import Location
    from mm_assets.formats.lance.reader import lance_options
    from mm_assets.formats.lance.unanswered import until_answered

    location = Location(uri, lance_options(uri, options))
    if not location.has_table():
        raise FileNotFoundError(f"{uri}: no Lance table here")
    with _naming(uri):
        options_of_table = location.storage_options or None
        dataset = until_answered(partial(lance.dataset, location.uri, storage_options=options_of_table))
        schema = _original(pa.Table.from_batches([], dataset.schema)).schema
        yield RowPart(pa.Table.from_batches([], schema))
        fragments, ids = _rows_of(dataset, location, partition)
        try:
            for start in range(0, len(ids), _IDS_PER_QUERY):
                yield from _matching(dataset, ids.slice(start, _IDS_PER_QUERY).to_pylist())
            for fragment in fragments:
                yield from _fragment(dataset, fragment, schema, uri)
        except (pa.ArrowException, OSError) as error:
            raise ShardError(unreadable_text(fragments or dataset.get_fragments(), error) or error) from error


@contextmanager
def _naming(uri: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ShardError(f"{uri}: lance cannot read it: {cause_line(error, uri)}") from error


def _rows_of(dataset: Any, location: Any, partition: str | None) -> tuple[list[Any], Any]:
    """Return the fragments of a partition, or its sample ids if other rows share its fragments."""
    from mm_assets.formats.lance.partitions import PartitionRecords
    from mm_assets.formats.lance.snapshot import Snapshot

    if partition is None:
        return dataset.get_fragments(), []
    snapshot = Snapshot(dataset)
    live = snapshot.live(PartitionRecords(location).of([partition])[partition])
    if live is None:
        return [], []
    if snapshot.present_rows(live) != live.rows:  # moved by compaction or by a deletion
        return [], live.sample_ids()
    return [snapshot.fragment(id_) for id_ in snapshot.fragment_ids(live)], []


def _matching(dataset: Any, ids: list[str]) -> Iterator[RowPart]:
    from mm_assets.formats.lance.snapshot import ids_predicate

    rows = _rows_at_once(dataset.get_fragments())
    for batch in dataset.scanner(filter=ids_predicate(ids), batch_size=rows, **_LIMITS).to_batches():
        yield RowPart(_original(pa.Table.from_batches([batch])))


def _fragment(dataset: Any, fragment: Any, schema: pa.Schema, uri: str) -> Iterator[RowPart]:
    rows, stop = _rows_at_once([fragment]), fragment.count_rows()
    index = blob_index(schema)
    columns = [name for name in dataset.schema.names if index < 0 or name != BLOBS]
    start, step = 0, rows
    while start < stop:
        limits = {"fragments": [fragment], "offset": start, "limit": step, "batch_size": step, **_LIMITS}
        table = _original(dataset.scanner(columns=columns, **limits).to_table())
        blob_rows = range(start, min(start + step, stop), rows)
        yield (
            RowPart(table)
            if index < 0
            else RowPart(table, _blobs(dataset, fragment, blob_rows, uri), index, schema.field(index))
        )
        start += step
        # Without blobs, rows are far smaller.
        step = min(max(_BYTES_AT_ONCE * step // max(table.nbytes, 1), 1), _ROWS_AT_ONCE)


def _blobs(dataset: Any, fragment: Any, rows: range, uri: str) -> Iterator[pa.Array]:
    """Yield the image bytes of these rows, one scan per step of the range."""
    with _naming(uri):  # a generator: errors occur while the caller iterates
        for start in rows:
            limits = {
                "offset": start,
                "limit": min(rows.step, rows.stop - start),
                "batch_size": max(rows.step // _BATCHES, 1),
                **_LIMITS,
            }
            for batch in dataset.scanner(fragments=[fragment], columns=[BLOBS], **limits).to_batches():
                yield batch.column(0).cast(dataset.schema.field(BLOBS).type)


def _original(table: pa.Table) -> pa.Table:
    from mm_assets.formats.lance.storage_types import from_storage, with_original_names

    table = from_storage(table)
    return table.rename_columns(with_original_names(table.schema).names)


def _rows_at_once(fragments: list[Any]) -> int:
    stored = sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.metadata.files)
    mean = max(stored // max(sum(fragment.metadata.physical_rows for fragment in fragments), 1), 1)
    return min(max(_BYTES_AT_ONCE // mean, 1), _ROWS_AT_ONCE)
