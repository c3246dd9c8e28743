"""Content of a PDF page: its images, and its text as pieces of lines.

* `images_on`: an image is JPEG as it lies in the file where that is what one sees, PNG otherwise.
* `DrawnImages`: names of the images that a page draws, read from the file itself, as pdfium says nothing of a
  damaged one.
* `pieces_of`: text is put together from the characters that pdfium finds.
"""

from __future__ import annotations

import io
import math
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from PIL import Image

from mm_assets.formats.images.decode import decode, opened, refuse_bomb
from mm_assets.formats.pdf import Box, Frame, Picture, Piece, union
from mm_assets.model.errors import DECOMPRESSION_BOMB, DecompressionBomb, Fault, ImageError, unreadable_image

if TYPE_CHECKING:
    from pypdfium2 import PdfImage, PdfPage


MAX_PIXELS = 1 << 26  # of a picture that pdfium decodes or renders, see `MEMORY`
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


_FORM_DEPTH: Final = (
    8  # forms within forms, as `images_on` looks for them; references to references; inherited entries
)
_MOST: Final = 1 << 25  # bytes of the operators of a page, unpacked
_LEAST: Final = 512  # bytes that a stream counts for: an empty one takes time, too
_MOST_DRAWN: Final = 100_000
_LONGEST: Final = 1 << 20  # bytes of an object without its stream
_KINDS: Final = (b"/Image", b"/Form", b"/PS")

_OBJECT: Final = re.compile(rb"(?<![0-9])([0-9]{1,10})\s+[0-9]{1,5}\s+obj(?![A-Za-z])")
_PACKED: Final = re.compile(rb"/Type\s*/ObjStm")
_STREAM: Final = re.compile(rb"\s*stream\r?\n")
_DRAWN: Final = re.compile(rb"(/[^\s<>\[\](){}/%]+)\s+Do(?![A-Za-z0-9])")
_TOKEN: Final = re.compile(
    rb"(?:\s|%[^\r\n]*+)*+"
    rb"(<<|>>|[\[\]]|\((?:\\.|[^()\\]|\((?:\\.|[^()\\])*+\))*+\)|<[0-9A-Fa-f\s]*+>|/?[^\s<>\[\](){}/%]++|/)",
    re.DOTALL,
)


class _Reference(int):
    """The number of an object that is named in its place."""


class _Unknown(ValueError):
    """Something is not as it is in most files."""


@dataclass
class _Drawn:
    """Names of images that a page draws, and of what is neither image nor form, with its object's number."""

    images: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images) + len(self.damaged)


class DrawnImages:
    """Names of the images that each page draws.

    It reads what most files have: objects by their headers, wherever the table of objects says they are, and
    streams that are packed by deflate or not at all. Of a page that has anything else nothing is known.

    Args:
        data: the file.
    """

    def __init__(self, data: bytes) -> None:
        self._left = _MOST
        self._places = {int(found[1]): (data, found.end(), found.end()) for found in _OBJECT.finditer(data)}
        starts = sorted((at, number) for number, (_, at, _) in self._places.items())
        for packed in _PACKED.finditer(data):
            nearest = bisect_right(starts, (packed.start(), 0)) - 1
            if nearest >= 0:
                try:
                    self._unpack(starts[nearest][1])
                except (KeyError, TypeError, ValueError, zlib.error):
                    continue  # what is in it is not found
        self._pages = [] if b"/Encrypt" in data else self._all_pages(data)

    def lost(self, number: int, pages: int, found: int) -> list[str]:
        """Return what is wrong with each image that a page draws, and that is not among those found on it.

        Args:
            number: of the page, counted from 1.
            pages: of the document, by pdfium.
            found: images that pdfium finds on the page, those within its operators among them.
        """
        drawn = _Drawn()
        self._left = _MOST
        try:
            if len(self._pages) == pages:
                page = self._pages[number - 1]
                contents = self._value(page.get(b"/Contents"))
                parts = contents if isinstance(contents, list) else [page.get(b"/Contents")]
                operators = b"\n".join(self._stream(part) for part in parts if part is not None)
                self._follow(operators, self._value(page.get(b"/Resources")), drawn, ())
        except (_Unknown, zlib.error):
            return []
        missing = max(0, len(drawn) - found)
        faults = [f"the page draws {name}, which is missing or damaged" for name in drawn.damaged[:missing]]
        names = ", ".join(dict.fromkeys(drawn.images))
        others = f"the page draws {len(drawn)} images ({names:.200}), and pdfium finds {found}"
        return faults + [others] * (missing - len(faults))

    def _follow(self, operators: bytes, resources: Any, drawn: _Drawn, forms: tuple[int, ...]) -> None:
        named = self._value(resources.get(b"/XObject")) if isinstance(resources, dict) else None
        for found in _DRAWN.finditer(operators):
            target = named.get(found[1]) if isinstance(named, dict) else None
            if target is None:
                continue
            if len(drawn) == _MOST_DRAWN:
                raise _Unknown("too many")
            name = found[1].decode("latin-1")
            value = self._value(target)
            kind = self._value(value.get(b"/Subtype")) if isinstance(value, dict) else None
            if kind == b"/Image":
                drawn.images.append(name)
            elif kind not in _KINDS:
                drawn.damaged.append(f"{name}, object {target:d}" if isinstance(target, int) else name)
            elif kind == b"/Form" and target not in forms and len(forms) < _FORM_DEPTH:
                inner = self._value(value.get(b"/Resources")) or resources
                self._follow(self._stream(target), inner, drawn, (*forms, target))

    def _all_pages(self, data: bytes) -> list[dict[bytes, Any]]:
        roots = re.findall(rb"/Root\s+([0-9]{1,10})\s+[0-9]{1,5}\s+R", data)
        try:
            root = self._value(_Reference(roots[-1])) if roots else None
            return list(self._kids(root.get(b"/Pages"), {}, set())) if isinstance(root, dict) else []
        except (_Unknown, RecursionError):
            return []

    def _kids(self, node: Any, inherited: dict[bytes, Any], seen: set[int]) -> Iterator[dict[bytes, Any]]:
        value = self._value(node)
        if not isinstance(value, dict) or not isinstance(node, _Reference) or node in seen:
            raise _Unknown("a page that is none")
        seen.add(node)
        entries = inherited | value
        kids = self._value(value.get(b"/Kids"))
        if kids is None:
            yield entries
            return
        if not isinstance(kids, list):
            raise _Unknown("a list of pages that is none")
        for kid in kids:
            yield from self._kids(kid, {b"/Resources": entries.get(b"/Resources")}, seen)

    def _unpack(self, number: int) -> None:
        """Add the objects that are packed in a stream, unless they come again behind it."""
        value, at = self._value(_Reference(number)), self._places[number][2]
        data = self._stream(_Reference(number))
        heads = [int(word) for word in data[: int(value[b"/First"])].split()]
        for packed, offset in zip(heads[::2], heads[1::2], strict=False):
            if packed not in self._places or self._places[packed][2] < at:
                self._places[packed] = (data, int(value[b"/First"]) + offset, at)

    def _value(self, value: Any) -> Any:
        """Return an object in the place of its number; None for one that is not there or cannot be read."""
        for _ in range(_FORM_DEPTH):
            if not isinstance(value, _Reference):
                return value
            if value not in self._places:
                return None
            data, at, _ = self._places[value]
            try:
                value = _parsed(data, at)[0]
            except _Unknown:
                return None
        return None

    def _stream(self, reference: Any) -> bytes:
        """Return the unpacked bytes of a stream.

        Raises:
            _Unknown: it is none, or packed in another way, or too long.
        """
        if not isinstance(reference, _Reference) or reference not in self._places:
            raise _Unknown("no stream")
        data, at, _ = self._places[reference]
        value, end = _parsed(data, at)
        start = _STREAM.match(data, end)
        if start is None or not isinstance(value, dict):
            raise _Unknown("no stream")
        length = _number(self._value(value.get(b"/Length")))
        stop = -1 if length is None else start.end() + length
        if stop < 0 or not data[stop : stop + 12].lstrip().startswith(b"endstream"):
            stop = data.find(b"endstream", start.end())
        raw = data[start.end() : stop]
        packing = self._value(value.get(b"/Filter"))
        self._left -= max(_LEAST, len(raw))
        if packing in (None, []) and self._left >= 0:
            return raw
        if packing not in (b"/FlateDecode", [b"/FlateDecode"]) or value.get(b"/DecodeParms") is not None:
            raise _Unknown(f"packed by {packing!r}")
        unpacking = zlib.decompressobj()
        found = unpacking.decompress(raw, max(1, self._left))
        self._left -= len(found)
        if self._left <= 0:
            raise _Unknown("too long")
        return found


def _parsed(data: bytes, at: int) -> tuple[Any, int]:
    """Return the object at a place, and where it ends. Names, numbers and texts are bytes.

    Raises:
        _Unknown: there is none.
    """
    open_: list[list[Any]] = [[]]
    last = at + _LONGEST
    while at < last:
        token = _TOKEN.match(data, at)
        if token is None:
            break
        word, at = token[1], token.end()
        if word in (b"<<", b"["):
            open_.append([word])
            continue
        value: Any = word
        if word in (b">>", b"]"):
            kind, *values = open_.pop()
            if not open_ or (kind == b"[") != (word == b"]"):
                break
            if kind == b"<<" and not all(isinstance(key, bytes) for key in values[::2]):
                break
            value = values if kind == b"[" else dict(zip(values[::2], values[1::2], strict=False))
        elif word == b"R" and len(open_[-1]) > 2:
            open_[-1].pop()
            if (number := _number(open_[-1].pop())) is None:
                break
            value = _Reference(number)
        open_[-1].append(value)
        if len(open_) == 1:
            return value, at
    raise _Unknown("no object")


def _number(value: Any) -> int | None:
    """Return a number of an object, or of bytes, that was read; None if it is none."""
    return int(value) if isinstance(value, bytes) and value.isdigit() and len(value) <= 10 else None


_LINE_ENDS = "\r\n"
_HYPHENS = "\x02\ufffe"  # pdfium's marks of a hyphen at the end of a line
_FAR = 1.0  # heights of a character: a wider gap ends a piece
_LEAST_HEIGHT = 0.01  # points: characters of a broken font have none


def pieces_of(page: PdfPage, frame: Frame) -> list[Piece]:
    """Return the pieces of lines, in the order of the file."""
    import pypdfium2.raw as pdfium

    text_page = page.get_textpage()
    try:
        rectangle = pdfium.FS_RECTF()
        pieces = _Pieces()
        for index in range(text_page.count_chars()):
            character = _character(pdfium.FPDFText_GetUnicode(text_page, index))
            if character in _LINE_ENDS:
                pieces.end()
            elif pdfium.FPDFText_GetLooseCharBox(text_page, index, rectangle):
                left, bottom, right, top = rectangle.left, rectangle.bottom, rectangle.right, rectangle.top
                if math.isfinite(left + bottom + right + top):
                    pieces.add(character, frame.rectangle(left, bottom, right, top))
        pieces.end()
        return pieces.found
    finally:
        text_page.close()


class _Pieces:
    """Characters put together to pieces: an end of line, a wide gap or another height ends one."""

    def __init__(self) -> None:
        self.found: list[Piece] = []
        self._text: list[str] = []
        self._boxes: list[Box] = []

    def add(self, character: str, box: Box) -> None:
        if character.isspace():
            if self._text:
                self._text.append(" ")
            return
        if not character or box.height < _LEAST_HEIGHT:
            return
        if self._boxes and self._is_far(box):
            self.end()
        self._text.append(character)
        self._boxes.append(box)

    def end(self) -> None:
        if self._boxes:
            self.found.append(Piece(union(self._boxes), _text(self._text)))
        self._text, self._boxes = [], []

    def _is_far(self, box: Box) -> bool:
        last = self._boxes[-1]
        gap = max(box.left - last.right, last.left - box.right)
        middle = (box.top + box.bottom) / 2
        return gap > _FAR * max(last.height, box.height) or not last.top <= middle <= last.bottom


def _character(code: int) -> str:
    character = chr(code)
    if character in _HYPHENS:
        return "-"
    return "" if code < ord(" ") and not character.isspace() else character


def _text(characters: list[str]) -> str:
    """Return the text with pairs of surrogates joined; half a pair becomes U+FFFD."""
    text: Any = "".join(characters).rstrip(" ")
    return str(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
