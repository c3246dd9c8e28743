"""A sample as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from mm_assets.formats.images.probe import ImageInfo
from mm_assets.pages.html_frame import page, text
from mm_assets.pages.pictures import MOST_EMBEDDED, PREVIEW_SIDE, picture
from mm_assets.sample_view import captions
from mm_assets.sample_view.document import Document, Item

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
        return shown.html(f"{info.format} of {info.display_width}x{info.display_height} pixels")

    return look


def sample_page(sample_id: str, documents: Sequence[Document], notes: Sequence[str] = ()) -> str:
    """Return the page of a sample: for each shard that has it, its items, and a table of their fates.

    Args:
        sample_id: the sample.
        documents: from one shard each, with images that `embedding` rendered.
        notes: further lines at the top.
    """
    body = [f'<h1 dir="auto">{text(sample_id)}</h1>']
    body += [_note(note) for note in notes]
    for document in documents:
        body += _document(document)
    return page(f"{sample_id} – sample", "\n".join(body), _STYLE)


def _document(document: Document) -> Iterator[str]:
    yield f'<section>\n<h2 dir="auto">{text(captions.place(document))}</h2>'
    yield from (_note(note) for note in document.notes)
    if document.scores:
        yield _note(captions.scores(document.scores))
    for item in document.items:
        if not item.is_metadata or item.fields or captions.remarks(item):
            yield from _item(item)
    if document.assets:
        yield from _fates(document)
    yield "</section>"


def _item(item: Item) -> Iterator[str]:
    yield f'<article class="item {item.state}">'
    position = "" if item.is_metadata else f"[{item.position}] "
    state = {"filtered": " · dropped", "quarantined": " · in quarantine", "flagged": " · flagged"}
    yield f"<h3>{position}{text(captions.heading(item))}{state.get(item.state, '')}</h3>"
    if item.text is not None:
        yield f'<p class="text" dir="auto">{text(captions.cut(item.text, _MOST_TEXT))}</p>'
    if item.shown:
        yield item.shown
    yield from (f'<p class="remark" dir="auto">{text(line)}</p>' for line in captions.remarks(item))
    if item.raw is not None:
        shown, what = item.raw
        yield _note(f"raw: {what}")
        if shown:
            yield f'<pre dir="auto">{text(shown)}</pre>'
    if item.fields:
        yield _fields(item.fields)
    if item.scores:
        yield _note(captions.scores(item.scores))
    yield "</article>"


def _fields(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th dir="auto">{text(name)}</th>'
        f'<td dir="auto">{text(captions.value(value, _MOST_VALUE))}</td></tr>'
        for name, value in values.items()
    )
    return f'<div class="wide"><table class="fields">{rows}</table></div>'


def _fates(document: Document) -> Iterator[str]:
    yield "<h2>What became of each item</h2>"
    heads = "".join(f"<th>{text(name)}</th>" for name in ("position", "modality", *document.assets))
    yield f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>'
    for item in document.items:
        cells = [str(item.position), item.modality, *(item.fates.get(name, "") for name in document.assets)]
        yield "<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></div>"


def _note(line: str) -> str:
    return f'<p class="note" dir="auto">{text(line)}</p>'
