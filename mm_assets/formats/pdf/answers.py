"""What a process that reads PDFs has found, taken from its messages, none of which is trusted.

A hostile file may have taken hold of that process. So sizes are bounded before anything is read, names are
chosen from what is known, and nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mm_assets.formats.pdf.errors import UnreadablePdf, nonsense
from mm_assets.formats.pdf.item import Item, Picture
from mm_assets.formats.pdf.process import PdfProcess
from mm_assets.formats.pdf.wire import MAX_DESCRIPTION, MAX_WORDS, Header
from mm_assets.formats.tar.writer import FileRange
from mm_assets.interleaved.faults import ITEM_FAULTS, Fault

MAX_TEXT = 64 << 20  # characters of all texts of a document
_MOST_BYTES = 4  # of a character
_SUFFIXES = ("jpg", "png")
_LARGEST = 1_000_000_000  # of coordinates, in points or shares of a page, and of numbers of items

Keep = Callable[[int, Iterator[bytes]], FileRange]
"""What takes the size and the bytes of a picture, and says where they are."""


@dataclass(frozen=True)
class Description:
    """What is known of a document before it is read: sizes of its pages in points, title and author."""

    sizes: list[list[float]]
    title: str | None
    author: str | None


def description_of(process: PdfProcess, size: int, most_pages: int) -> Description:
    """Return the description that the next ``size`` bytes are."""
    if size > MAX_DESCRIPTION:
        raise nonsense()
    try:
        found = json.loads(b"".join(process.chunks(size)))
        sizes, title, author = (found[name] for name in ("sizes", "title", "author"))
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise nonsense() from error
    if not isinstance(sizes, list) or not 0 < len(sizes) <= most_pages:
        raise nonsense()
    if not all(_are_numbers(pair, 2) for pair in sizes):
        raise nonsense()
    if not all(text is None or isinstance(text, str) for text in (title, author)):
        raise nonsense()
    return Description(sizes, title, author)


def item_of(process: PdfProcess, header: Header, size: int, pages: int, keep: Keep) -> Item:
    """Return the item that a message, and the next ``size`` bytes, are."""
    page, number, box = (header.get(name) for name in ("page", "number", "box"))
    if type(page) is not int or not 0 < page <= pages or type(number) is not int:
        raise nonsense()
    if not 1 <= number <= _LARGEST or not _are_numbers(box, 4):
        raise nonsense()
    assert isinstance(box, list)
    return Item(page, number, box, content_of(process, header, size, keep))


def content_of(process: PdfProcess, header: Header, size: int, keep: Keep) -> str | Picture | Fault:
    """Return the text or the picture that a message, and the next ``size`` bytes, are."""
    kind = header.get("content")
    try:
        if kind == "text":
            if size > MAX_TEXT * _MOST_BYTES:
                raise UnreadablePdf(f"more than {MAX_TEXT} characters of text")
            return b"".join(process.chunks(size)).decode()
        if kind == "fault" and header.get("fault") in ITEM_FAULTS:
            return Fault(header["fault"], words_of(process, size))
    except ValueError as error:
        if isinstance(error, UnreadablePdf):
            raise
        raise nonsense() from error
    suffix, offset = header.get("suffix"), header.get("offset")
    if kind != "picture" or suffix not in _SUFFIXES:
        raise nonsense()
    if offset is not None and (type(offset) is not int or not 0 <= offset <= process.document_size - size):
        raise nonsense()
    return Picture(keep(size, process.chunks(size)), suffix, offset)


def words_of(process: PdfProcess, size: int) -> str:
    """Return the message that the next ``size`` bytes are."""
    if size > MAX_WORDS:
        raise nonsense()
    return b"".join(process.chunks(size)).decode(errors="replace")


def _are_numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) in (int, float) and abs(value) <= _LARGEST for value in values)
    )
