"""Items of a PDF in reading order by the layout of its pages, and pictures of given boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.pdf.document import open_page
from mm_assets.formats.pdf.drawn_images import DrawnImages
from mm_assets.formats.pdf.errors import UnreadablePdf
from mm_assets.formats.pdf.images import Crops, images_on, picture_of
from mm_assets.formats.pdf.item import Item, Picture
from mm_assets.formats.pdf.layout import Piece, blocks_of
from mm_assets.formats.pdf.page_text import pieces_of
from mm_assets.interleaved.faults import Fault, unreadable_image

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

DPI = 144  # of images that only a block file knows

_SAME = 0.9  # intersection over union from which a block's box is that of an embedded image

Step = Callable[[int], None]
"""What is called before a page is opened, with its number."""


def page_sizes(document: PdfDocument, step: Step) -> list[list[float]]:
    """Return width and height of each page as it is shown, in points.

    Raises:
        UnreadablePdf: a page cannot be opened.
    """
    sizes = []
    for number in range(1, len(document) + 1):
        step(number)
        with open_page(document, number) as (_, frame):
            sizes.append([round(side, 2) for side in frame.size])
    return sizes


def items_by_layout(document: PdfDocument, data: bytes, most: int, step: Step) -> Iterator[Item]:
    """Yield the items of all pages, ordered by the geometry of each page.

    An image that a page draws and pdfium does not find is a fault behind all others of the page.

    Args:
        document: the open document.
        data: its bytes.
        most: lines and images; a document with more is refused.
        step: called before each page.

    Raises:
        UnreadablePdf: a page cannot be opened, or there are too many items.
    """
    left, drawn = most, DrawnImages(data)
    for page_number in range(1, len(document) + 1):
        step(page_number)
        with open_page(document, page_number) as (page, frame):
            texts = pieces_of(page, frame)
            images = list(images_on(page, frame, left + 1))
            lost = drawn.lost(page_number, len(document), len(images))
            left -= len(texts) + len(images) + len(lost)
            if left < 0:
                raise UnreadablePdf(f"more than {most} lines and images")
            pieces = texts + [Piece(box, None, number) for number, (_, box) in enumerate(images)]
            blocks = blocks_of(pieces, frame.size[0])
            for number, block in enumerate(blocks, 1):
                content = block.text if block.text is not None else picture_of(images[block.number][0], data)
                yield Item(page_number, number, frame.shares(block.box), content)
            for number, fault in enumerate(lost, len(blocks) + 1):
                yield Item(page_number, number, [0.0, 0.0, 1.0, 1.0], unreadable_image(ImageError(fault)))


def pictures_in(
    document: PdfDocument, data: bytes, boxes: Sequence[tuple[int, Sequence[float]]], most: int, step: Step
) -> Iterator[Picture | Fault]:
    """Yield a picture for each box: the embedded image that fills it, else the part of the rendered page.

    Args:
        document: the open document.
        data: its bytes.
        boxes: number of the page, and sides as shares of it.
        most: images of a page that are looked at.
        step: called before each box.

    Raises:
        UnreadablePdf: a page cannot be opened.
    """
    crops = Crops(DPI)
    for number, shares in boxes:
        step(number)
        with open_page(document, number) as (page, frame):
            wanted = frame.of_shares(shares)
            found = [(box.overlap(wanted), image) for image, box in images_on(page, frame, most)]
            overlap, image = max(found, key=lambda pair: pair[0], default=(0.0, None))
            if image is not None and overlap >= _SAME:
                yield picture_of(image, data)
            else:
                yield crops.cut(page, number, frame, wanted)
