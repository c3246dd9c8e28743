"""Block files: what a layout model found in a PDF, as a JSON list of blocks in reading order."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from mm_assets.formats.webdataset.payload import SampleError, parse_payload
from mm_assets.interleaved.faults import BAD_LAYOUT

MAX_BLOCKS = 100_000

IMAGE = "image"
_BLOCKS = "blocks"
_FIELDS = ("page", "box", "type", "text")


class GivenBlock(NamedTuple):
    """A block of a block file; ``text`` is None for an image."""

    page: int
    box: tuple[float, ...]
    type: str
    text: str | None


def parse_blocks(data: bytes, pages: int, place: str) -> list[GivenBlock]:
    """Return the blocks of a file.

    Args:
        data: the file.
        pages: how many pages the PDF has.
        place: the file's name in errors.

    Raises:
        SampleError: it is not JSON, no list, or a block in it is none of this PDF.
    """
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"[":
        raise SampleError(BAD_LAYOUT, f"{place}: no JSON list of blocks")
    # The list is put into an object, for the strict parser of samples.
    payload = parse_payload(b'{"%s": %s}' % (_BLOCKS.encode(), data.removeprefix(b"\xef\xbb\xbf")), place)
    if list(payload) != [_BLOCKS]:
        raise SampleError(BAD_LAYOUT, f"{place}: no JSON list of blocks")
    entries = payload[_BLOCKS]
    if len(entries) > MAX_BLOCKS:
        raise SampleError(BAD_LAYOUT, f"{place}: {len(entries)} blocks, at most {MAX_BLOCKS}")
    return [_block(entry, pages, f"{place}: block {at}") for at, entry in enumerate(entries, 1)]


def _block(entry: Any, pages: int, place: str) -> GivenBlock:
    if not isinstance(entry, dict):
        raise _bad(place, "no object", entry)
    if unknown := [name for name in entry if name not in _FIELDS]:
        raise _bad(place, f"field {unknown[0]!r:.100} is none of {', '.join(_FIELDS)}", entry)
    page, kind, text = (entry.get(name) for name in ("page", "type", "text"))
    box: Any = entry.get("box")
    if type(page) is not int or not 1 <= page <= pages:
        raise _bad(place, f"'page' is no number from 1 to {pages}", page)
    if not _is_box(box):
        raise _bad(place, "'box' is no [left, top, right, bottom] in shares of the page from 0 to 1", box)
    if not isinstance(kind, str) or not kind:
        raise _bad(place, "'type' is no text", kind)
    if kind == IMAGE and text is not None:
        raise _bad(place, "an image has no 'text'; give its words a block of their own", text)
    if kind != IMAGE and not isinstance(text, str):
        raise _bad(place, f"'text' of a block of type {kind!r:.100} is no text", text)
    return GivenBlock(page, tuple(float(side) for side in box), kind, text)


def _is_box(box: object) -> bool:
    if not isinstance(box, list) or len(box) != 4:
        return False
    if not all(type(side) in (int, float) and 0 <= side <= 1 for side in box):
        return False
    return bool(box[0] < box[2] and box[1] < box[3])


def _bad(place: str, reason: str, found: Any) -> SampleError:
    return SampleError(BAD_LAYOUT, f"{place}: {reason}: {json.dumps(found):.100}")
