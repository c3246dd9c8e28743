"""One sample as it is shown: its items in order, with content, fields, scores and what became of them.

`Document` is the sample in one shard, `Item` and `Mark` are its parts. `parquet_rows` and `lance_rows` read
the rows of samples, images included, a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.history import Locator
from mm_assets.accounting.ledger import locator_columns
from mm_assets.formats.images.headers import ImageInfo, probe
from mm_assets.formats.parquet.files import (
    checked,
    column_chunks,
    open_parquet,
    original_schema,
    possible_groups,
    read_batches,
    restore,
    rows_within,
)
from mm_assets.model.errors import ImageError, unreadable_image
from mm_assets.model.nested_types import binary_views
from mm_assets.model.schema import METADATA_POSITION, MODALITIES, RESERVED_COLUMNS
from mm_assets.storage.files import StorageOptions

Look = Callable[[memoryview, ImageInfo], str]
"""Rendering of an image that can be probed. Its bytes are not kept: a sample may have gigabytes of them."""


@dataclass(frozen=True)
class Mark:
    """What a filter or a fault says of an item: a row of the ledger.

    Attributes:
        asset: the asset that noted it; empty outside of a storage.
        outcome: ``filtered``, ``flagged`` or ``quarantined``.
        kind: the filter, or the class of fault.
        reason: why, in words.
        score: what a filter measured.
        threshold: what it asked for.
    """

    asset: str
    outcome: str
    kind: str
    reason: str
    score: float | None = None
    threshold: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any], asset: str) -> Mark:
        """Return the mark of a row, or of the attributes of a `Loss`."""
        return cls(asset, *(row[name] for name in ("outcome", "kind", "reason", "score", "threshold")))

    def __str__(self) -> str:
        where = f" in {self.asset}" if self.asset else ""
        if self.outcome == "quarantined":
            return f"quarantined{where}: {self.kind}: {self.reason}"
        verb = "flagged" if self.outcome == "flagged" else "dropped"
        score = "" if self.score is None else f" (score {self.score:g}, asked for {self.threshold})"
        return f"{verb}{where} by {self.kind}: {self.reason}{score}"


@dataclass
class Item:
    """One item of a sample.

    Attributes:
        position: place in the sample; -1 is the metadata.
        modality: metadata, text or image.
        locator: where it came from, as in `ItemHistory`.
        text: of a text.
        nbytes: of an image; None without bytes.
        info: header of an image; None if it cannot be read.
        shown: what `Look` made of an image.
        error: the fault that came with the item, or why its image cannot be read.
        fields: its own columns with a value.
        scores: measurements with a value.
        marks: what filters and faults say of it.
        fates: what became of it, by asset.
        raw: of an item in quarantine, its bytes as far as they can be shown, and what they are.
        has_content: whether its row was found, and not only a record of it.
    """

    position: int
    modality: str
    locator: Locator = (None,) * 5
    text: str | None = None
    nbytes: int | None = None
    info: ImageInfo | None = None
    shown: str = ""
    error: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    fates: Mapping[str, str] = field(default_factory=dict)
    raw: tuple[str, str] | None = None
    has_content: bool = False

    @property
    def state(self) -> str:
        """``quarantined``, ``filtered``, ``flagged``, or empty: the worst of the marks."""
        outcomes = {mark.outcome for mark in self.marks}
        return next((name for name in ("quarantined", "filtered", "flagged") if name in outcomes), "")

    @property
    def is_metadata(self) -> bool:
        """Whether it is the metadata of its sample."""
        return self.position == METADATA_POSITION


@dataclass
class Document:
    """A sample of one shard.

    Attributes:
        sample_id: its id.
        partition: the shard; None where nobody recorded it.
        origin: where it was read from, for people.
        items: in order.
        scores: of the sample as a whole.
        notes: what the reader of the page has to know.
        assets: outputs that the fates of items are about.
    """

    sample_id: str
    partition: str | None
    origin: str
    items: list[Item] = field(default_factory=list)
    scores: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    assets: tuple[str, ...] = ()

    def sort(self) -> None:
        """Bring the items into order: metadata, then by position, text before image."""
        self.items.sort(key=lambda item: (item.position, MODALITIES.index(item.modality)))


def items_of(tables: Iterable[pa.Table], look: Look) -> list[Item]:
    """Return the items of tables that have the rows of one sample, a few at a time."""
    return [item for table in tables for item in _items(table, look)]


def _items(table: pa.Table, look: Look) -> Iterable[Item]:
    blobs = "binary_content"
    has_blobs = blobs in table.column_names
    rows = (table.drop_columns([blobs]) if has_blobs else table).to_pylist()
    views: list[memoryview | None] = [None] * len(rows)
    if has_blobs:
        column = table.column(blobs).cast(pa.large_binary())
        views = [view for chunk in column.chunks for view in binary_views(chunk)]
    for row, view in zip(rows, views, strict=True):
        if row["modality"] in MODALITIES and isinstance(row["position"], int):
            yield _item(row, view, look)


def _item(row: Mapping[str, Any], view: memoryview | None, look: Look) -> Item:
    fields = {
        name: value for name, value in row.items() if name not in RESERVED_COLUMNS and value is not None
    }
    item = Item(
        row["position"],
        row["modality"],
        tuple(locator_columns(row.get("source_ref")).values()),
        row.get("text_content"),
        error=row.get("materialize_error"),
        fields=fields,
        has_content=True,
    )
    if view is not None:
        look_at(item, view, look)
    return item


def look_at(item: Item, data: memoryview, look: Look) -> None:
    """Note size, header and picture of an image."""
    item.nbytes = len(data)
    try:
        item.info = probe(data)
    except ImageError as error:
        item.error = item.error or unreadable_image(error).message
        return
    item.shown = look(data, item.info)


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
    from mm_assets.formats.lance.reader_writer import lance_options
    from mm_assets.formats.lance.snapshot import ids_predicate, naming_table, opened
    from mm_assets.formats.lance.types import from_storage, with_original_names

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
