"""Items of a PDF in reading order, by the layout of its pages or by a block file."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mm_assets.formats.pdf.block_file import GivenBlock
from mm_assets.formats.pdf.document import open_page, unreadable
from mm_assets.formats.pdf.images import Crops, Picture, images_on, picture_of
from mm_assets.formats.pdf.layout import Piece, blocks_of
from mm_assets.formats.pdf.page_text import pieces_of
from mm_assets.interleaved.faults import Fault

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

MAX_ITEMS = 100_000  # of a document, before pieces of lines are put together
DPI = 144  # of images that only a block file knows

_SAME = 0.9  # intersection over union from which a block's box is that of an embedded image


@dataclass(frozen=True)
class Item:
    """A text, or a picture (a fault for one that cannot be had).

    Attributes:
        page: counted from 1.
        number: of the block in its page, counted from 1.
        box: left, top, right and bottom as shares of the page.
        content: the text or the picture.
        kind: type of the block in the block file; None without one.
    """

    page: int
    number: int
    box: list[float]
    content: str | Picture | Fault
    kind: str | None = None


def page_sizes(document: PdfDocument, place: str) -> list[list[float]]:
    """Return width and height of each page as it is shown, in points.

    Raises:
        SampleError: a page cannot be opened.
    """
    sizes = []
    for number in range(1, len(document) + 1):
        with open_page(document, number, place) as (_, frame):
            sizes.append([round(side, 2) for side in frame.size])
    return sizes


def items_by_layout(document: PdfDocument, data: bytes, place: str) -> Generator[Item, None, None]:
    """Yield the items of all pages, ordered by the geometry of each page.

    Args:
        document: the open document.
        data: its bytes.
        place: its name in errors.

    Raises:
        SampleError: a page cannot be opened, or there are too many items.
    """
    left = MAX_ITEMS
    for page_number in range(1, len(document) + 1):
        with open_page(document, page_number, place) as (page, frame):
            texts = pieces_of(page, frame)
            images = list(images_on(page, frame, left + 1))
            left -= len(texts) + len(images)
            if left < 0:
                raise unreadable(place, f"more than {MAX_ITEMS} lines and images")
            pieces = texts + [Piece(box, None, number) for number, (_, box) in enumerate(images)]
            for number, block in enumerate(blocks_of(pieces, frame.size[0]), 1):
                content = block.text if block.text is not None else picture_of(images[block.number][0], data)
                yield Item(page_number, number, frame.shares(block.box), content)


def items_by_blocks(
    document: PdfDocument, data: bytes, blocks: Sequence[GivenBlock], place: str
) -> Generator[Item, None, None]:
    """Yield the items of given blocks, in their order.

    An image is the embedded one that fills its box, else the part of the rendered page.

    Args:
        document: the open document.
        data: its bytes.
        blocks: those of its block file.
        place: its name in errors.

    Raises:
        SampleError: a page cannot be opened.
    """
    crops = Crops(DPI)
    numbers: dict[int, int] = {}
    for block in blocks:
        number = numbers[block.page] = numbers.get(block.page, 0) + 1
        content: str | Picture | Fault
        if block.text is None:
            content = _picture(document, data, block, crops, place)
        else:
            content = block.text
        yield Item(block.page, number, list(block.box), content, block.type)


def _picture(
    document: PdfDocument, data: bytes, block: GivenBlock, crops: Crops, place: str
) -> Picture | Fault:
    with open_page(document, block.page, place) as (page, frame):
        wanted = frame.of_shares(block.box)
        found = [(box.overlap(wanted), image) for image, box in images_on(page, frame, MAX_ITEMS)]
        overlap, image = max(found, key=lambda pair: pair[0], default=(0.0, None))
        if image is not None and overlap >= _SAME:
            return picture_of(image, data)
        return crops.cut(page, block.page, frame, wanted)
