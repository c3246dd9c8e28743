"""One sample as it is shown: its items in order, with content, fields, scores and what became of them.

`Document` is the sample in one shard, `Item` and `Mark` are its parts. `parquet_rows` and `lance_rows` read
the rows of samples, images included, a few at a time. `sample_page` makes a self-contained HTML page of a
sample, `lines` those for the terminal, with small pictures where it has 24-bit colour.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting import locator_columns
from mm_assets.formats.images import ImageInfo, probe
from mm_assets.formats.images.pixels import thumbnail
from mm_assets.formats.parquet import (
    checked,
    column_chunks,
    open_parquet,
    original_schema,
    possible_groups,
    read_batches,
    restore,
    rows_within,
)
from mm_assets.formats.parquet.items import ReferencedImages
from mm_assets.model.errors import DENIED, ImageError, counted, unreadable_image
from mm_assets.model.errors import html_table as table
from mm_assets.model.errors import html_text as text
from mm_assets.model.nested_types import binary_views
from mm_assets.model.schema import METADATA_POSITION, MODALITIES, RESERVED_COLUMNS
from mm_assets.terminal import half_blocks, printable, side_by_side
from mm_assets.view import (
    MOST_EMBEDDED,
    PREVIEW_SIDE,
    description_of,
    note,
    page,
    picture,
)

if TYPE_CHECKING:
    pass

Locator = tuple[Any, ...]  # source, member, byte offset, byte size, frame; each may be None
Look = Callable[[memoryview, ImageInfo], str]
"""Rendering of an image that can be probed. Its bytes are not kept: a sample may have gigabytes of them."""


def place_of(locator: Locator) -> str:
    """Return member, bytes and frame of a locator in words, as far as known."""
    _, member, offset, size, frame = locator
    parts = [member] if member else []
    if offset is not None:
        parts.append(f"@{offset}" if size is None else f"@{offset}+{size}")
    if frame is not None:
        parts.append(f"frame {frame}")
    return " ".join(parts)


def origin_of(locator: Locator) -> str:
    """Return the file of a locator, and the place in it, in words."""
    return f"{locator[0]}: {place_of(locator)}" if locator[0] else "an unknown source"


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
        original: of a copy, the item that stays in its place, and its name.
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
    original: tuple[str, Item] | None = None

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
        original: of a copy, the items of the sample that stays in its place, and its id.
    """

    sample_id: str
    partition: str | None
    origin: str
    items: list[Item] = field(default_factory=list)
    scores: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    assets: tuple[str, ...] = ()
    original: tuple[str, Sequence[Item]] | None = None

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


def parquet_rows(uri: str, sample_ids: Collection[str]) -> Iterator[pa.Table]:
    """Yield the rows of samples in a Parquet file with a row per item; none of those that are not there.

    Row groups are chosen by their statistics, then by their column ``sample_id``. One that has such a sample
    is read up to the last row.

    Raises:
        ShardError: the file is damaged.
    """
    with closing(open_parquet(uri, uri, None, {})) as file, ExitStack() as stack:
        if (images := ReferencedImages.of(uri, file)) is not None:
            stack.callback(images.close)
        schema = original_schema(file)
        wanted_ids = pa.array(sample_ids, pa.large_string())
        found_in = (possible_groups(file.metadata, sample_id) for sample_id in sample_ids)
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
                    found = found if images is None else images.filled(found)
                    yield restore(found.select(schema.names), schema)
                if seen > last:
                    break


def parquet_ids(uri: str) -> pa.ChunkedArray:
    """Return the column ``sample_id`` of a Parquet file.

    Raises:
        ShardError: the file is damaged.
    """
    with closing(open_parquet(uri, uri, None, {})) as file:
        chunks = column_chunks(uri, file, uri, "sample_id", None)
    return pa.chunked_array([chunk.cast(pa.large_string()) for chunk in chunks], pa.large_string())


def lance_rows(uri: str, sample_id: str) -> Iterator[pa.Table]:
    """Yield the rows of a sample in a Lance table, which its index finds if it has one.

    Raises:
        ShardError: the table is damaged.
    """
    from mm_assets.formats.lance import from_storage, naming_table, opened, with_original_names
    from mm_assets.formats.lance.reader_writer import lance_options
    from mm_assets.formats.lance.snapshot import ids_predicate

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


_BYTES: Final = 32  # of a binary value
_SCORE: Final = 80  # characters
_VALUES: Final = 8  # of a list


def heading(item: Item) -> str:
    """Return what an item is, such as ``image 640x480 jpg 34 KB``."""
    words = [item.modality]
    if item.info is not None:
        words += [f"{item.info.display_width}x{item.info.display_height}", item.info.format]
    if item.nbytes is not None:
        words.append(byte_size(item.nbytes))
    return " ".join(words)


def remarks(item: Item) -> list[str]:
    """Return a line for each mark of an item, its error, and why there is nothing to see of it."""
    lines = [str(mark) for mark in item.marks]
    if item.error is not None and not any(item.error in line for line in lines):
        lines.append(f"error: {item.error}")
    if any(mark.kind in DENIED for mark in item.marks):
        return lines
    if not item.has_content and item.raw is None:
        has_fates = bool(item.fates)
        lines.append("its content is in no output, only in the raw shard" if has_fates else "it was not read")
    elif item.modality == "image" and item.nbytes is None and item.raw is None and item.error is None:
        lines.append("its bytes are not here, only where they are")
    return lines


def place(document: Document) -> str:
    """Return where a document comes from, in one line."""
    return f"shard {document.partition or '(not recorded)'}, from {document.origin}"


def scores(values: Mapping[str, Any]) -> str:
    """Return measurements in one line."""
    return " · ".join(f"{name} {shown_value(score, _SCORE)}" for name, score in values.items())


def shown_value(given: Any, most: int) -> str:
    """Return a value of a field or a score in at most about ``most`` characters."""
    if isinstance(given, bytes):
        more = "…" if len(given) > _BYTES else ""
        return f"0x{given[:_BYTES].hex()}{more}"
    if isinstance(given, float):
        return f"{given:g}"
    if isinstance(given, list):
        first = ", ".join(shown_value(entry, most // _VALUES) for entry in given[:_VALUES])
        return f"[{first}]" if len(given) <= _VALUES else f"[{first}, …] ({len(given)} values)"
    return cut(str(given), most)


def cut(text: str, most: int) -> str:
    """Return the beginning of a text, and how much of it is left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]} … ({counted(len(text) - most, 'more character')})"


def byte_size(nbytes: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    size, unit = float(nbytes), "B"
    for larger in ("KB", "MB", "GB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}" if unit != "B" and size < 9.95 else f"{size:.0f} {unit}"


_MOST_TEXT: Final = 1_000_000  # characters of a text
_MOST_VALUE: Final = 2000  # and of a field
_MOST_BYTES: Final = 64 << 20  # of pictures, from which on they are small previews: browsers have to load it
_SMALL_SIDE: Final = 256  # pixels
_STYLE: Final = """
.item { border-inline-start: .25rem solid transparent; padding-inline-start: 1rem; margin: 1.5rem 0; }
.item h3 { font-size: .8rem; font-weight: 600; color: var(--dim); margin: 0 0 .25rem; }
.filtered, .quarantined { border-color: var(--bad); }
.flagged { border-color: var(--flag); }
.filtered img, .quarantined img { opacity: .45; filter: grayscale(1); }
.filtered .text, .quarantined .text { opacity: .6; }
.remark { color: var(--bad); margin: .25rem 0; }
.flagged .remark { color: var(--flag); }
.fields { font-size: .85rem; color: var(--dim); }
pre { white-space: pre-wrap; font-size: .85rem; margin: .25rem 0; }
pre { border: 1px solid var(--line); padding: .5rem; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; align-items: start; }
"""


def embedding() -> Callable[[memoryview, ImageInfo], str]:
    """Return a function that renders images for one page.

    Small files are embedded as they are until the page has enough of them, then small previews.
    """
    embedded = 0

    def look(data: memoryview, info: ImageInfo) -> str:
        nonlocal embedded
        most, side = (MOST_EMBEDDED, PREVIEW_SIDE) if embedded < _MOST_BYTES else (0, _SMALL_SIDE)
        shown = picture(data, info, most, side)
        embedded += len(shown.uri)
        return shown.html(description_of(info))

    return look


def sample_page(sample_id: str, documents: Sequence[Document], notes: Sequence[str] = ()) -> str:
    """Return the page of a sample: for each shard that has it, its items, and a table of their fates.

    Args:
        sample_id: the sample.
        documents: from one shard each, with images that `embedding` rendered.
        notes: further lines at the top.
    """
    body = [f'<h1 dir="auto">{text(sample_id)}</h1>']
    body += map(note, notes)
    for document in documents:
        body += _document(document)
    return page(f"{sample_id} – sample", "\n".join(body), _STYLE)


def _document(document: Document) -> Iterator[str]:
    yield f'<section>\n<h2 dir="auto">{text(place(document))}</h2>'
    yield from map(note, document.notes)
    if document.scores:
        yield note(scores(document.scores))
    if document.original is None:
        yield from _items_html(document.items)
    else:
        original, items = document.original
        yield from ('<div class="pair">', "<div>", *_items_html(document.items), "</div>", "<div>")
        yield f'<h2 dir="auto">{text(_stays(original))}</h2>'
        yield from (*_items_html(items), "</div>", "</div>")
    if document.assets:
        yield from _fates(document)
    yield "</section>"


def _items_html(items: Iterable[Item]) -> Iterator[str]:
    for item in items:
        if not item.is_metadata or item.fields or remarks(item):
            yield from _item_html(item)


def _stays(original: str) -> str:
    return f"stays in its place: {original}"


def _item_html(item: Item) -> Iterator[str]:
    yield f'<article class="item {item.state}">'
    position = "" if item.is_metadata else f"[{item.position}] "
    state = {"filtered": " · dropped", "quarantined": " · in quarantine", "flagged": " · flagged"}
    yield f"<h3>{position}{text(heading(item))}{state.get(item.state, '')}</h3>"
    if item.text is not None:
        yield f'<p class="text" dir="auto">{text(cut(item.text, _MOST_TEXT))}</p>'
    if item.original is not None:
        name, other = item.original
        named = f'<p class="fields" dir="auto">{text(_stays(name))}, {text(heading(other))}</p>'
        yield f'<div class="pair"><div>{item.shown}</div><div>{other.shown}{named}</div></div>'
    elif item.shown:
        yield item.shown
    yield from (f'<p class="remark" dir="auto">{text(line)}</p>' for line in remarks(item))
    if item.raw is not None:
        shown, what = item.raw
        yield note(f"raw: {what}")
        if shown:
            yield f'<pre dir="auto">{text(shown)}</pre>'
    if item.fields:
        yield _fields(item.fields)
    if item.scores:
        yield note(scores(item.scores))
    yield "</article>"


def _fields(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th dir="auto">{text(name)}</th>'
        f'<td dir="auto">{text(shown_value(value, _MOST_VALUE))}</td></tr>'
        for name, value in values.items()
    )
    return f'<div class="wide"><table class="fields">{rows}</table></div>'


def _fates(document: Document) -> Iterator[str]:
    yield "<h2>What became of each item</h2>"
    rows = [
        [str(item.position), item.modality, *(item.fates.get(name, "") for name in document.assets)]
        for item in document.items
    ]
    fates = table(("position", "modality", *document.assets), rows, between="\n")
    yield f'<div class="wide">{fates}</div>'


_INDENT: Final = "    "
_MOST_TERMINAL_TEXT: Final = 2000  # characters of a text
_MOST_TERMINAL_VALUE: Final = 200  # and of a field
_COLUMNS: Final = 32  # of a picture
_LINES: Final = 10  # of a picture; each shows two rows of pixels
_IN_HEADING: Final = ("width", "height", "format", "byte_size", "error")


def no_picture(data: memoryview, info: ImageInfo) -> str:
    """Return nothing, for a terminal without colours."""
    return ""


def coloured(data: memoryview, info: ImageInfo) -> str:
    """Return an image as lines of half blocks in 24-bit colour; empty where it cannot be decoded."""
    small = thumbnail(data)
    if small is None:
        return ""
    small.thumbnail((_COLUMNS, 2 * _LINES))
    return "\n".join(half_blocks(small))


def lines(document: Document, width: int) -> Iterator[str]:
    """Yield the lines of a document, wrapped to a width; what comes from data cannot move the cursor."""
    yield printable(place(document))
    for line in document.notes:
        yield f"  {printable(line)}"
    if document.scores:
        yield from _wrapped(scores(document.scores), "  ", width)
    for item in document.items:
        yield from _item_lines(item, width)
    if document.original is not None:
        original, items = document.original
        yield printable(_stays(original))
        for item in items:
            yield from _item_lines(item, width)


def _item_lines(item: Item, width: int) -> Iterator[str]:
    if not item.is_metadata:
        yield f"[{item.position}] {heading(item)}"
    elif item.marks or item.error:
        yield "metadata"
    indent = "  " if item.is_metadata else _INDENT
    shown = item.shown
    if item.original is not None:
        name, other = item.original
        yield from _wrapped(f"{_stays(name)}, {heading(other)}", indent, width)
        shown = side_by_side(shown, other.shown)
    if shown:
        yield from (f"{indent}{line}" for line in shown.split("\n"))
    if item.text is not None:
        yield from _wrapped(cut(item.text, _MOST_TERMINAL_TEXT), indent, width)
    for name, value in item.fields.items():
        yield from _wrapped(f"{name}: {shown_value(value, _MOST_TERMINAL_VALUE)}", indent, width)
    unusual = {name: score for name, score in item.scores.items() if not _is_told(name, score)}
    if unusual:
        yield from _wrapped(scores(unusual), indent, width)
    for remark in remarks(item):
        yield from _wrapped(f"! {remark}", indent, width)
    if item.raw is not None:
        shown, what = item.raw
        yield from _wrapped(f"raw: {what}", indent, width)
        yield from _wrapped(shown, indent + "  ", width)


def _is_told(name: str, score: object) -> bool:
    """Return whether a score is in the heading of its item, or says nothing."""
    return name in _IN_HEADING or (name == "orientation" and score == 1)


def _wrapped(text: str, indent: str, width: int) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(
            printable(line),
            max(width, 2 * len(indent)),
            initial_indent=indent,
            subsequent_indent=indent,
            drop_whitespace=True,
            break_on_hyphens=False,
        ) or [""]
