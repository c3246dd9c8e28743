"""Images of a page: JPEG as it lies in the file where that is what one sees, PNG otherwise."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from PIL import Image

from mm_assets.formats.images.decode import decode, opened, refuse_bomb
from mm_assets.formats.images.errors import DecompressionBomb, ImageError
from mm_assets.formats.pdf.geometry import Box, Frame
from mm_assets.formats.pdf.item import Picture
from mm_assets.interleaved.faults import DECOMPRESSION_BOMB, Fault, unreadable_image

if TYPE_CHECKING:
    from pypdfium2 import PdfImage, PdfPage

MAX_PIXELS = 1 << 26  # of a picture that pdfium decodes or renders, see `limits.MEMORY`
_DEPTH = 8  # forms within forms
_BPP_COLOURS = {1: "L", 3: "RGB"}

# The dictionary of an image and the beginning of its stream, right in front of the stream's bytes.
_DICTIONARY = re.compile(rb"obj\s*<<(.*)>>\s*stream\r?\n", re.DOTALL)
_LONGEST_DICTIONARY = 4096
# Entries by which the picture on the page differs from the JPEG. A name may be written with #xx.
_CHANGED = re.compile(rb"/Decode(?![A-Za-z])|/S?Mask(?![A-Za-z])|/ImageMask|/ColorTransform|/SMaskInData|#")


def images_on(page: PdfPage, frame: Frame, most: int) -> Iterator[tuple[PdfImage, Box]]:
    """Yield the images of a page with their boxes, in the order they are drawn, at most ``most``."""
    import pypdfium2.raw as pdfium

    for count, image in enumerate(page.get_objects((pdfium.FPDF_PAGEOBJ_IMAGE,), max_depth=_DEPTH)):
        if count == most:
            return
        corners = image.get_quad_points()
        form = image.container
        while form is not None:
            matrix = form.get_matrix()
            corners = tuple(matrix.on_point(*corner) for corner in corners)
            form = form.container
        yield image, frame.box(corners)


def picture_of(image: PdfImage, document: bytes) -> Picture | Fault:
    """Return an image of the PDF ``document``; a fault for one that cannot be had."""
    import pypdfium2

    try:
        width, height = image.get_px_size()
        refuse_bomb(width, height, MAX_PIXELS)
        filters = image.get_filters()
        if filters == ["DCTDecode"] and (plain := _plain_jpeg(image, document)) is not None:
            return plain
        _check_whole(image, filters)
        return Picture(_decoded(image), "png")
    except DecompressionBomb as error:
        return Fault(DECOMPRESSION_BOMB, f"decompression bomb: {error}")
    except (pypdfium2.PdfiumError, ImageError, UnicodeError) as error:
        place_in_memory = f" {image!r}"  # the same file shall give the same bytes
        return unreadable_image(ImageError(str(error).replace(place_in_memory, "")))


def _plain_jpeg(image: PdfImage, document: bytes) -> Picture | None:
    """Return a JPEG if its own decoding is what the page shows; else None."""
    data = bytes(image.get_data())
    if (offset := _plain_offset(data, document)) is None:
        return None
    import pypdfium2.raw as pdfium

    metadata = image.get_metadata()
    spaces = {
        pdfium.FPDF_COLORSPACE_DEVICEGRAY: "L",
        pdfium.FPDF_COLORSPACE_CALGRAY: "L",
        pdfium.FPDF_COLORSPACE_DEVICERGB: "RGB",
        pdfium.FPDF_COLORSPACE_CALRGB: "RGB",
        pdfium.FPDF_COLORSPACE_ICCBASED: _BPP_COLOURS.get(metadata.bits_per_pixel // 8),
    }
    same = _mode_and_size(data) == (spaces.get(metadata.colorspace), image.get_px_size())
    return Picture(data, "jpg", offset) if same else None


def _mode_and_size(data: bytes) -> tuple[str, tuple[int, int]]:
    """Return the mode and size of a JPEG, from its header.

    Raises:
        ImageError: it is none, or has too many pixels.
    """
    try:
        with opened(data, "jpg", MAX_PIXELS) as picture:
            return picture.mode, picture.size
    except ImageError:
        raise
    except Exception as error:  # Pillow raises whatever its parser runs into
        raise ImageError(str(error)) from error


def _check_whole(image: PdfImage, filters: Sequence[str]) -> None:
    """Check that the data of an image are all there: pdfium fills up what is missing, and does not say so.

    Only JPEG and pixels that are packed without loss can be checked.

    Raises:
        ImageError: data are missing.
    """
    import pypdfium2.raw as pdfium

    if filters == ["DCTDecode"]:
        decode(bytes(image.get_data()), "jpg", MAX_PIXELS)
    elif all(name in image.SIMPLE_FILTERS for name in filters):
        width, height = image.get_px_size()
        expected = (width * image.get_metadata().bits_per_pixel + 7) // 8 * height
        found = pdfium.FPDFImageObj_GetImageDataDecoded(image, None, 0)
        if found < expected:
            raise ImageError(f"{found} of {expected} bytes of pixels are there")


def _plain_offset(data: bytes, document: bytes) -> int | None:
    """Return where a stream begins in the file, if no dictionary in front of it changes its picture.

    pdfium does not tell the dictionary of an image. It is found by the stream's bytes, which lie in the file
    as they are, unless that is encrypted. Several images may have equal bytes: all of them count.
    """
    first: int | None = None
    at = document.find(data) if data else -1
    while at >= 0:
        head = document[max(0, at - _LONGEST_DICTIONARY) : at]
        dictionary = _DICTIONARY.fullmatch(head[max(head.rfind(b"obj"), 0) :])
        if dictionary is None or _CHANGED.search(dictionary[1]):
            return None
        first = at if first is None else first
        at = document.find(data, at + len(data))
    return first


def _decoded(image: PdfImage) -> bytes:
    """Return an image as PNG: its own pixels, or, where it has a mask, as pdfium renders it."""
    with_mask = _rendered(image)
    if with_mask.mode == "RGBA" and with_mask.getchannel("A").getextrema() != (255, 255):
        return _png(with_mask)
    return _png(image.get_bitmap().to_pil())


def _rendered(image: PdfImage) -> Image.Image:
    """Return an image upright, one pixel for each of its own, with its mask applied."""
    from pypdfium2 import PdfMatrix

    width, height = image.get_px_size()
    placed = image.get_matrix()
    image.set_matrix(PdfMatrix(width, 0, 0, height, 0, 0))
    try:
        return image.get_bitmap(render=True, scale_to_original=False).to_pil().copy()
    finally:
        image.set_matrix(placed)


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


class Crops:
    """Parts of pages, rendered; the page rendered last is kept."""

    def __init__(self, dpi: int) -> None:
        self._scale = dpi / 72
        self._page: tuple[int, Image.Image] | None = None

    def cut(self, page: PdfPage, number: int, frame: Frame, box: Box) -> Picture | Fault:
        """Return the part of a page in a box as PNG."""
        try:
            width, height = frame.size
            refuse_bomb(round(width * self._scale), round(height * self._scale), MAX_PIXELS)
        except DecompressionBomb as error:
            return Fault(DECOMPRESSION_BOMB, f"decompression bomb: page {number}: {error}")
        if self._page is None or self._page[0] != number:
            self._page = number, page.render(scale=self._scale).to_pil().convert("RGB")
        picture = self._page[1]
        left, top = (max(0, int(value * self._scale)) for value in (box.left, box.top))
        right = min(picture.width, max(left + 1, round(box.right * self._scale)))
        bottom = min(picture.height, max(top + 1, round(box.bottom * self._scale)))
        left, top = min(left, right - 1), min(top, bottom - 1)
        return Picture(_png(picture.crop((left, top, right, bottom))), "png")
