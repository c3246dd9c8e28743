"""A sample as one self-contained HTML page, or as lines for the terminal.

`sample_page` makes the page. `lines` is for the terminal, with small pictures where it has 24-bit colour.
Both use the same words for the parts of a sample.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from mm_assets.formats.images.headers import ImageInfo
from mm_assets.formats.images.pixels import thumbnail
from mm_assets.model.errors import counted
from mm_assets.model.errors import html_table as table
from mm_assets.model.errors import html_text as text
from mm_assets.terminal import printable
from mm_assets.view.html import (
    MOST_EMBEDDED,
    PREVIEW_SIDE,
    description_of,
    note,
    page,
    picture,
)
from mm_assets.view.sample import Document, Item

if TYPE_CHECKING:
    from PIL.Image import Image


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
    for item in document.items:
        if not item.is_metadata or item.fields or remarks(item):
            yield from _item(item)
    if document.assets:
        yield from _fates(document)
    yield "</section>"


def _item(item: Item) -> Iterator[str]:
    yield f'<article class="item {item.state}">'
    position = "" if item.is_metadata else f"[{item.position}] "
    state = {"filtered": " · dropped", "quarantined": " · in quarantine", "flagged": " · flagged"}
    yield f"<h3>{position}{text(heading(item))}{state.get(item.state, '')}</h3>"
    if item.text is not None:
        yield f'<p class="text" dir="auto">{text(cut(item.text, _MOST_TEXT))}</p>'
    if item.shown:
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
_RESET: Final = "\x1b[0m"


def no_picture(data: memoryview, info: ImageInfo) -> str:
    """Return nothing, for a terminal without colours."""
    return ""


def coloured(data: memoryview, info: ImageInfo) -> str:
    """Return an image as lines of half blocks in 24-bit colour; empty where it cannot be decoded."""
    small = thumbnail(data)
    if small is None:
        return ""
    small.thumbnail((_COLUMNS, 2 * _LINES))
    return "\n".join(_half_blocks(small))


def lines(document: Document, width: int) -> Iterator[str]:
    """Yield the lines of a document, wrapped to a width; what comes from data cannot move the cursor."""
    yield printable(place(document))
    for line in document.notes:
        yield f"  {printable(line)}"
    if document.scores:
        yield from _wrapped(scores(document.scores), "  ", width)
    for item in document.items:
        yield from _item_lines(item, width)


def _item_lines(item: Item, width: int) -> Iterator[str]:
    if not item.is_metadata:
        yield f"[{item.position}] {heading(item)}"
    elif item.marks or item.error:
        yield "metadata"
    indent = "  " if item.is_metadata else _INDENT
    if item.shown:
        yield from (f"{indent}{line}" for line in item.shown.split("\n"))
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


def _half_blocks(picture: Image) -> Iterator[str]:
    pixels = picture.load()
    assert pixels is not None
    for top in range(0, picture.height, 2):
        cells = []
        for left in range(picture.width):
            upper = pixels[left, top]
            lower = pixels[left, top + 1] if top + 1 < picture.height else None
            background = "" if lower is None else f"\x1b[48;2;{_colour(lower)}m"
            cells.append(f"\x1b[38;2;{_colour(upper)}m{background}▀")
        yield "".join(cells) + _RESET


def _colour(pixel: object) -> str:
    assert isinstance(pixel, tuple)
    return ";".join(str(int(channel)) for channel in pixel[:3])
