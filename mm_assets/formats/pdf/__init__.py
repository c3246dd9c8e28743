"""PDF files as raw shards: each becomes a sample of its texts and images in reading order (docs/pdf.md).

They are a file system, ``pdf://``. Here is what its processes have in common.

* `Limits`: what one PDF may take. Errors of reading a PDF, and of the processes that do it.
* `packed`: how a message between these processes begins.
* `Item` is what a PDF has: texts and pictures, each with its place. `Frame` turns a PDF's coordinates to
  those of the page as it is shown.
* `blocks_of` puts pieces in reading order by simple geometry: columns, then top to bottom. It knows boxes and
  nothing of PDFs. See docs/pdf.md for what it does not know.
"""

from __future__ import annotations

import json
import math
import signal
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from mm_assets.formats.tar import FileRange
from mm_assets.model.errors import DataError, Fault, MmAssetsError

# A picture of the most pixels takes up to 1 GiB with its mask, as pdfium and Pillow hold it several times.
# What lies in the file is held several times, too: a file of 256 MiB of noise, in one picture, took 2 GiB.
MEMORY = 1 << 30
MEMORY_PER_BYTE = 4

# A page of text takes some milliseconds, one of a fax 0.2 s, one scanned in colour 2 s, but few of those go
# into a file; a picture of the most pixels takes 23 s.
PAGE_SECONDS = 60
DOCUMENT_SECONDS = 600
SILENT_SECONDS = 600.0  # of the clock: ten times a page, for machines that have more to do

MAX_PAGES = 10_000
MAX_ITEMS = 100_000
MAX_TEXT = 64 << 20  # characters of all texts of a document


@dataclass(frozen=True)
class Limits:
    """Limits of a PDF; one beyond them is refused.

    Attributes:
        memory: bytes of address space that reading it may take.
        memory_per_byte: further ones for each byte of the file.
        page_seconds: CPU time of a page, or to open the file.
        document_seconds: CPU time of all pages.
        silent_seconds: time without a sign of life.
        pages: pages of the document.
        items: lines and images of the document, before pieces of lines are put together.
    """

    memory: int = MEMORY
    memory_per_byte: int = MEMORY_PER_BYTE
    page_seconds: int = PAGE_SECONDS
    document_seconds: int = DOCUMENT_SECONDS
    silent_seconds: float = SILENT_SECONDS
    pages: int = MAX_PAGES
    items: int = MAX_ITEMS

    def memory_for(self, size: int) -> int:
        """Return the bytes of memory for a file of ``size`` bytes."""
        return self.memory + self.memory_per_byte * size


# By these a process dies of what it does itself. By any other it is killed by others: by the kernel when the
# machine has no memory left, or by the user.
_CRASHES = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGTRAP,
    signal.SIGSYS,
}


class UnreadablePdf(DataError):
    """A PDF cannot be used; the message is the reason, without the name of the file."""


class PdfProcessError(MmAssetsError, ChildProcessError):
    """A process that reads PDFs does not start, or is ended by others; no PDF is to blame."""


class ProcessLost(MmAssetsError, ChildProcessError):
    """The process that reads a PDF has died of it, or was ended for what it took.

    ``is_certain`` is whether it would be so again in a new process. Memory that the PDFs before have left, or
    damaged, counts in an old one.
    """

    def __init__(self, reason: str, is_certain: bool = False) -> None:
        super().__init__(reason)
        self.is_certain = is_certain


def out_of_memory(allowed: int) -> ProcessLost:
    """Return the error of a process that needs more bytes of memory than it may take."""
    return ProcessLost(f"needs more than {allowed >> 20} MiB of memory")


def nonsense() -> ProcessLost:
    """Return the error of a message that no sound process sends."""
    return ProcessLost("the process that reads it sends nonsense")


def died_of(code: int, output: str) -> ProcessLost | PdfProcessError:
    """Return the error of a process that has died.

    Args:
        code: its exit status, or the number of a signal, negative.
        output: the last line that it has written.
    """
    if -code in _CRASHES:
        hint = ", as it does where it gets no memory" if code == -signal.SIGABRT else ""
        return ProcessLost(f"pdfium crashed (signal {-code}){hint}")
    if code == -signal.SIGKILL:
        return PdfProcessError(
            "the process that reads PDFs was killed, as the kernel does when memory runs out, where fewer "
            "workers (MM_WORKERS, --workers) need less, or when a limit on CPU time (ulimit -t) is reached"
        )
    cause = f"signal {-code}" if code < 0 else f"exit status {code}"
    return PdfProcessError(f"the process that reads PDFs has ended: {output or cause}")


HEAD = struct.Struct(">II")  # bytes of the JSON, bytes behind it
MAX_HEADER = 1 << 16
MAX_DESCRIPTION = 64 << 20  # bytes of JSON: title, author and the sizes of all pages
MAX_WORDS = 1 << 16  # bytes of a reason or a fault

Header = dict[str, Any]


def packed(header: Header, size: int) -> bytes:
    """Return the beginning of a message that ``size`` bytes follow."""
    text = json.dumps(header).encode()
    return HEAD.pack(len(text), size) + text


_DIGITS = 4  # of a share of the page: 0.06 points of a page of 600


class Box(NamedTuple):
    """A rectangle, in points from the top left of the page as it is shown."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def area(self) -> float:
        return max(self.width, 0.0) * max(self.height, 0.0)

    def holds_centre_of(self, other: Box) -> bool:
        """Return whether the centre of another box is in this one."""
        x, y = (other.left + other.right) / 2, (other.top + other.bottom) / 2
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def overlap(self, other: Box) -> float:
        """Return the area of both as a share of that of either (intersection over union)."""
        common = Box(
            max(self.left, other.left),
            max(self.top, other.top),
            min(self.right, other.right),
            min(self.bottom, other.bottom),
        )
        if common.width <= 0 or common.height <= 0:
            return 0.0
        return common.area / (self.area + other.area - common.area)


def union(boxes: Iterable[Box]) -> Box:
    """Return the smallest box around all."""
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return Box(min(lefts), min(tops), max(rights), max(bottoms))


class Frame(NamedTuple):
    """The visible part of a page in the PDF's own coordinates, and the turn it is shown with (degrees)."""

    left: float
    bottom: float
    right: float
    top: float
    turn: int = 0

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the page as it is shown, in points."""
        width, height = self.right - self.left, self.top - self.bottom
        return (height, width) if self.turn in (90, 270) else (width, height)

    def box(self, corners: Sequence[tuple[float, float]]) -> Box:
        """Return the box around points in the PDF's own coordinates; an empty one for broken numbers."""
        if not all(math.isfinite(value) for corner in corners for value in corner):
            return Box(0.0, 0.0, 0.0, 0.0)
        shown = [self._shown(x, y) for x, y in corners]
        return union(Box(x, y, x, y) for x, y in shown)

    def rectangle(self, left: float, bottom: float, right: float, top: float) -> Box:
        """Return the box of an upright rectangle in the PDF's own coordinates, faster than `box`."""
        x, y = self._shown(left, bottom)
        other_x, other_y = self._shown(right, top)
        if x > other_x:
            x, other_x = other_x, x
        return Box(x, y, other_x, other_y) if y < other_y else Box(x, other_y, other_x, y)

    def shares(self, box: Box) -> list[float]:
        """Return a box as shares of the page's width and height, within the page."""
        width, height = self.size
        scaled = (box.left / width, box.top / height, box.right / width, box.bottom / height)
        return [round(min(max(value, 0.0), 1.0), _DIGITS) for value in scaled]

    def of_shares(self, shares: Sequence[float]) -> Box:
        """Return the box that has these shares."""
        width, height = self.size
        left, top, right, bottom = shares
        return Box(left * width, top * height, right * width, bottom * height)

    def _shown(self, x: float, y: float) -> tuple[float, float]:
        if self.turn == 90:
            return y - self.bottom, x - self.left
        if self.turn == 180:
            return self.right - x, y - self.bottom
        if self.turn == 270:
            return self.top - y, self.right - x
        return x - self.left, self.top - y


@dataclass(frozen=True)
class Picture:
    """The bytes of an image, their suffix, and where they lie in the PDF (None: nowhere as they are)."""

    data: bytes | FileRange
    suffix: str
    offset: int | None = None

    @property
    def size(self) -> int:
        """Number of its bytes."""
        return self.data.size if isinstance(self.data, FileRange) else len(self.data)


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


_LEAST_COLUMN = 1 / 6  # of the page's width: list marks and line numbers are no columns
_LEAST_LINES = 2  # of a column, unless it has an image
_BESIDE = 0.5  # of the shorter of two columns, that is beside the other
_BREAK = 0.5  # of a line's height: that much more than the usual distance begins a new block
_OTHER_SIZE = 1.25  # ratio of heights from which lines are of different blocks
_MOST_ROWS = 500  # with more, there is no search for columns: its time grows with the square


class Piece(NamedTuple):
    """A piece of a line (``text``), or an image (``text`` is None), which ``number`` tells from others."""

    box: Box
    text: str | None = None
    number: int = 0


@dataclass(frozen=True)
class Block:
    """Neighbouring lines, or one image."""

    box: Box
    text: str | None
    number: int


def blocks_of(pieces: Sequence[Piece], page_width: float) -> list[Block]:
    """Return the blocks of a page in reading order.

    What lies in an image (the labels of a drawing, the hidden text of a scan) comes right behind it.
    """
    inside = _inside(pieces)
    within = {number for numbers in inside.values() for number in numbers}
    outer = [piece for number, piece in enumerate(pieces) if number not in within]
    columns = list(_columns(outer, page_width))
    usual = _usual_distance(columns)
    blocks: list[Block] = []
    by_piece = {id(piece): number for number, piece in enumerate(pieces)}
    for rows in columns:
        for group in _groups(rows, usual):
            if group[0][0].text is not None:
                blocks.append(_text_block(group))
                continue
            (image,) = group[0]
            blocks.append(Block(image.box, None, image.number))
            below = [pieces[number] for number in inside.get(by_piece[id(image)], ())]
            blocks += blocks_of(below, page_width)
    return blocks


def _inside(pieces: Sequence[Piece]) -> dict[int, list[int]]:
    """Return by the index of an image those of the pieces in it; a piece in several is in the largest."""
    images = [number for number, piece in enumerate(pieces) if piece.text is None]
    images.sort(key=lambda number: -pieces[number].box.area)
    inside: dict[int, list[int]] = {}
    within: set[int] = set()
    for image in images:
        if image in within:
            continue
        box = pieces[image].box
        for number, piece in enumerate(pieces):
            if number == image or number in within or number in inside or not box.holds_centre_of(piece.box):
                continue
            if piece.text is None and piece.box.area >= box.area:
                continue
            inside.setdefault(image, []).append(number)
            within.add(number)
    return inside


Row = list[Piece]


def _rows(pieces: Sequence[Piece]) -> list[Row]:
    """Return the pieces that lie side by side, rows from top to bottom."""
    rows: list[Row] = []
    top = bottom = 0.0
    for piece in sorted(pieces, key=lambda piece: (piece.box.top, piece.box.left)):
        box = piece.box
        common = min(bottom, box.bottom) - max(top, box.top)
        if rows and common > 0.5 * min(bottom - top, box.height):
            rows[-1].append(piece)
            top, bottom = min(top, box.top), max(bottom, box.bottom)
        else:
            rows.append([piece])
            top, bottom = box.top, box.bottom
    return [sorted(row, key=lambda piece: piece.box.left) for row in rows]


def _columns(pieces: Sequence[Piece], page_width: float) -> Iterator[list[Row]]:
    """Yield the rows of each column; what spans several columns is one by itself."""
    rows = _rows(pieces)
    single: list[Row] = []
    at = 0
    while at < len(rows):
        end, gutter = _gutter(rows, at, page_width) if len(rows) <= _MOST_ROWS else (at, 0.0)
        if end == at:
            single.append(rows[at])
            at += 1
            continue
        if single:
            yield single
            single = []
        both = [piece for row in rows[at:end] for piece in row]
        yield from _columns([piece for piece in both if piece.box.right <= gutter], page_width)
        yield from _columns([piece for piece in both if piece.box.right > gutter], page_width)
        at = end
    if single:
        yield single


class _Span(NamedTuple):
    """A part of the page's width that pieces take, how far down they go, and how many there are."""

    left: float
    right: float
    top: float
    bottom: float
    lines: int
    images: int
    height: float  # of its lowest line


def _gutter(rows: Sequence[Row], start: int, page_width: float) -> tuple[int, float]:
    """Return up to which row a gutter leads from a row on, and where it is; the row itself for none."""
    spans: list[_Span] = []
    found = start, 0.0
    for at in range(start, len(rows)):
        for piece in rows[at]:
            spans = _with_piece(spans, piece)
        gap, gutter = max(
            (
                (right.left - left.right, (left.right + right.left) / 2)
                for number, (left, right) in enumerate(zip(spans, spans[1:], strict=False), 1)
                if _are_columns(spans[:number], spans[number:], page_width)
            ),
            default=(0.0, 0.0),
        )
        if gap > 0:
            found = at + 1, gutter
        if len(spans) == 1 and spans[0].right - spans[0].left > page_width / 2:
            break
    return found


def _with_piece(spans: list[_Span], piece: Piece) -> list[_Span]:
    """Return the spans with another piece; those nearer than the height of a line are one."""
    box, is_text = piece.box, piece.text is not None
    new = _Span(
        box.left,
        box.right,
        box.top,
        box.bottom,
        int(is_text),
        int(not is_text),
        box.height if is_text else 0.0,
    )
    others: list[_Span] = []
    for span in spans:
        height = min((height for height in (span.height, new.height) if height), default=0.0)
        if span.left - new.right < height * _BREAK and new.left - span.right < height * _BREAK:
            new = _Span(
                min(span.left, new.left),
                max(span.right, new.right),
                min(span.top, new.top),
                max(span.bottom, new.bottom),
                span.lines + new.lines,
                span.images + new.images,
                height,
            )
        else:
            others.append(span)
    return sorted([*others, new])


def _are_columns(left: Sequence[_Span], right: Sequence[_Span], page_width: float) -> bool:
    """Return whether the spans on both sides of a gap are columns, which lie beside each other."""
    tops, bottoms = zip(*(_extent(side) for side in (left, right)), strict=True)
    beside = min(bottoms) - max(tops)
    shorter = min(bottom - top for top, bottom in zip(tops, bottoms, strict=True))
    return beside > _BESIDE * shorter and _is_column(left, page_width) and _is_column(right, page_width)


def _extent(spans: Sequence[_Span]) -> tuple[float, float]:
    return min(span.top for span in spans), max(span.bottom for span in spans)


def _is_column(spans: Sequence[_Span], page_width: float) -> bool:
    has_enough = any(span.images for span in spans) or sum(span.lines for span in spans) >= _LEAST_LINES
    return has_enough and spans[-1].right - spans[0].left >= page_width * _LEAST_COLUMN


def _usual_distance(columns: Sequence[list[Row]]) -> float:
    """Return the usual distance of two lines of the page; 0 for lines that touch."""
    distances = [
        max(0.0, _distance(one, other))
        for rows in columns
        for one, other in zip(rows, rows[1:], strict=False)
        if one[0].text is not None and other[0].text is not None
    ]
    return median(distances) if distances else 0.0


def _distance(row: Row, below: Row) -> float:
    return union(piece.box for piece in below).top - union(piece.box for piece in row).bottom


def _groups(rows: Sequence[Row], usual: float) -> Iterator[list[Row]]:
    """Yield the rows of each block; each image is alone."""
    group: list[Row] = []
    for row in rows:
        for image in [piece for piece in row if piece.text is None]:
            if group:
                yield group
                group = []
            yield [[image]]
        if texts := [piece for piece in row if piece.text is not None]:
            if group and _is_apart(group[-1], texts, usual):
                yield group
                group = []
            group.append(texts)
    if group:
        yield group


def _is_apart(row: Row, below: Row, usual: float) -> bool:
    one, other = (max(piece.box.height for piece in line) for line in (row, below))
    height = min(one, other)
    return (
        _distance(row, below) > min(usual, height) + _BREAK * height or max(one, other) > _OTHER_SIZE * height
    )


def _text_block(rows: Sequence[Row]) -> Block:
    box = union(piece.box for row in rows for piece in row)
    return Block(box, "\n".join("\t".join(str(piece.text) for piece in row) for row in rows), 0)
