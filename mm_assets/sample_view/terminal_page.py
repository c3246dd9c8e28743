"""A sample as lines for the terminal, with small pictures where it has 24-bit colour."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mm_assets.formats.images.probe import ImageInfo
from mm_assets.formats.images.thumbnails import thumbnail
from mm_assets.sample_view import captions
from mm_assets.sample_view.document import Document, Item
from mm_assets.terminal import printable

if TYPE_CHECKING:
    from PIL.Image import Image

_INDENT: Final = "    "
_MOST_TEXT: Final = 2000  # characters of a text
_MOST_VALUE: Final = 200  # and of a field
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
    yield printable(captions.place(document))
    for note in document.notes:
        yield f"  {printable(note)}"
    if document.scores:
        yield from _wrapped(captions.scores(document.scores), "  ", width)
    for item in document.items:
        yield from _item(item, width)


def _item(item: Item, width: int) -> Iterator[str]:
    if not item.is_metadata:
        yield f"[{item.position}] {captions.heading(item)}"
    elif item.marks or item.error:
        yield "metadata"
    indent = "  " if item.is_metadata else _INDENT
    if item.shown:
        yield from (f"{indent}{line}" for line in item.shown.split("\n"))
    if item.text is not None:
        yield from _wrapped(captions.cut(item.text, _MOST_TEXT), indent, width)
    for name, value in item.fields.items():
        yield from _wrapped(f"{name}: {captions.value(value, _MOST_VALUE)}", indent, width)
    unusual = {name: score for name, score in item.scores.items() if not _is_told(name, score)}
    if unusual:
        yield from _wrapped(captions.scores(unusual), indent, width)
    for remark in captions.remarks(item):
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
