"""One sample as it is shown: its items in order, with content, fields, scores and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets.accounting.history import Locator
from mm_assets.accounting.ledger import locator_columns
from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.probe import ImageInfo, probe
from mm_assets.interleaved.buffers import binary_views
from mm_assets.interleaved.faults import unreadable_image
from mm_assets.interleaved.schema import METADATA_POSITION, MODALITIES, RESERVED_COLUMNS

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
