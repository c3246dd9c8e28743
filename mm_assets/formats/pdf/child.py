"""Child process that reads PDFs: the only one in which pdfium runs.

* `serve`: its main function.
* `confine`, `Budget`: what it allows itself, memory for each document and CPU time for each page.
* `open_document`: a document is refused unless it is whole.
* `items_by_layout`, `pictures_in`: items in reading order by the layout of the pages, and pictures of given
  boxes.

Messages between child and parent are a JSON object, and bytes behind it. The parent opens a document
(``size``, and its bytes). The child says page by page that it is alive (``page``), then what the document is
(``document``). The parent asks for the items in reading order (``read``), for the pictures of given boxes
(``pictures``), or for nothing (``stop``). Each item is a message (``content``), then comes ``end``. Instead
of any answer the child may refuse the document (``refused``), or say that it gets no more memory
(``memory``).

The child has read what strangers made: the parent trusts none of its messages
(`mm_assets.formats.pdf.process`).
"""

from __future__ import annotations

import ctypes
import json
import math
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from mm_assets.formats.pdf import (
    HEAD,
    MAX_DESCRIPTION,
    MAX_WORDS,
    Frame,
    Header,
    Item,
    Limits,
    Picture,
    Piece,
    UnreadablePdf,
    blocks_of,
    packed,
)
from mm_assets.formats.pdf.page_content import Crops, DrawnImages, images_on, picture_of, pieces_of
from mm_assets.model.errors import Fault, ImageError, unreadable_image

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage


# No single piece of memory that pdfium asks for is larger. It can do without some: an image is left out then,
# or a part of a page, and nobody is told. So the system refuses only what is that far beyond the limit. The
# process has been beyond the limit itself before that, and its parent sees it.
LARGEST_PIECE = 2 << 30

_STATM = Path("/proc/self/statm")  # Linux only
_PR_SET_PDEATHSIG = 1
_MAX_OUTPUT = 1 << 16  # bytes that it may write to any file; that is its stderr


def confine() -> None:
    """Let this process die with its parent (Linux), and leave nothing behind when it crashes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a parent may block signals, which is inherited
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent decides what happens to the work
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_FSIZE, _MAX_OUTPUT)


class Budget:
    """Memory and CPU time of one document at a time, beyond what this process has when it is made."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._start = _address_space()
        self._began = 0.0

    def begin(self, size: int) -> None:
        """Allow what a document of ``size`` bytes may take; the process ends where the system does not.

        With less, parts of pages could be missing, and nobody would be told.
        """
        self._began = time.process_time()
        if self._start is not None:
            most = self._start + self._limits.memory_for(size) + LARGEST_PIECE
            _, hardest = resource.getrlimit(resource.RLIMIT_AS)
            if hardest != resource.RLIM_INFINITY and hardest < most:
                needed = f"PDFs need room for {most >> 20} MiB, even if few take as much"
                sys.exit(f"address space is limited to {hardest >> 20} MiB (ulimit -v); {needed}")
            _limit(resource.RLIMIT_AS, most)
        self._begin_page()

    def step(self) -> None:
        """Allow the time of another page.

        Raises:
            UnreadablePdf: the document has had its time.
        """
        if time.process_time() - self._began > self._limits.document_seconds:
            raise UnreadablePdf(f"took longer than {self._limits.document_seconds} s of CPU time")
        self._begin_page()

    def end(self) -> None:
        """Allow all the time that the system does."""
        _limit(resource.RLIMIT_CPU, resource.RLIM_INFINITY)

    def _begin_page(self) -> None:
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + self._limits.page_seconds)


def _limit(what: int, most: int) -> None:
    """Set a limit, as far as the system allows."""
    _, hardest = resource.getrlimit(what)
    if hardest != resource.RLIM_INFINITY and (most == resource.RLIM_INFINITY or most > hardest):
        most = hardest
    with suppress(ValueError, OSError):  # macOS has no limit on memory
        resource.setrlimit(what, (most, hardest))


def _address_space() -> int | None:
    try:
        return int(_STATM.read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None


MAX_POINTS = 200 * 72  # largest side of a page: 200 inches, by the PDF standard

_ENDS = 1024  # bytes: other readers, too, search as many for the first and the last mark


@contextmanager
def open_document(data: bytes, most_pages: int) -> Iterator[PdfDocument]:
    """Open a document; not for several threads, as pdfium may be called by one at a time.

    pdfium itself mends what is cut or damaged, with what it finds, and says nothing. So a file that it has
    to mend is refused.

    Args:
        data: the file.
        most_pages: a document with more is refused.

    Raises:
        UnreadablePdf: it is no PDF, encrypted, cut, damaged, has no pages or too many, or pdfium fails while
            it is used.
    """
    import pypdfium2
    import pypdfium2.raw as pdfium

    if b"%PDF-" not in data[:_ENDS]:
        raise UnreadablePdf("no PDF: it does not begin with %PDF-")
    if b"%%EOF" not in data[-_ENDS:]:
        raise UnreadablePdf("the file is cut: it does not end with %%EOF")
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        needs_password = error.err_code == pdfium.FPDF_ERR_PASSWORD
        reason = (
            "encrypted: it needs a password"
            if needs_password
            else f"pdfium cannot open it, it is broken or has no pages: {error}"
        )
        raise UnreadablePdf(reason) from error
    try:
        if not pdfium.FPDF_DocumentHasValidCrossReferenceTable(document):
            hint = "mend the file first (qpdf broken.pdf mended.pdf)"
            raise UnreadablePdf(f"its cross-reference table is damaged: {hint}")
        if not 0 < len(document) <= most_pages:
            raise UnreadablePdf(f"{len(document)} pages, at least 1 and at most {most_pages}")
        yield document
    except (pypdfium2.PdfiumError, UnicodeError) as error:
        raise UnreadablePdf(f"pdfium cannot read it: {error}") from error
    finally:
        document.close()


@contextmanager
def open_page(document: PdfDocument, number: int) -> Iterator[tuple[PdfPage, Frame]]:
    """Open a page, counted from 1, and yield it with its frame.

    Raises:
        UnreadablePdf: it cannot be opened, or is empty or too large.
    """
    import pypdfium2

    try:
        page = document[number - 1]
    except pypdfium2.PdfiumError as error:
        raise UnreadablePdf(f"page {number} cannot be opened: {error}") from error
    try:
        left, bottom, right, top = page.get_bbox()
        frame = Frame(left, bottom, right, top, page.get_rotation())
        if not all(1 <= side <= MAX_POINTS for side in frame.size):
            width, height = frame.size
            raise UnreadablePdf(
                f"page {number} has {width:g} x {height:g} points, at most {MAX_POINTS} a side"
            )
        yield page, frame
    finally:
        page.close()


class ChildEnd:
    """The child's end of the connection."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def send(self, header: Header, body: bytes = b"") -> None:
        """Send a message, at the latest with the next `flush`."""
        self._file.write(packed(header, len(body)))
        self._file.write(body)

    def flush(self) -> None:
        """Send what waits."""
        self._file.flush()

    def receive(self) -> tuple[Header, int] | None:
        """Return the next message, and how many bytes follow it; None if the parent is gone."""
        self.flush()
        head = self._file.read(HEAD.size)
        if len(head) < HEAD.size:
            return None
        length, size = HEAD.unpack(head)
        return json.loads(self._file.read(length)), size

    def body(self, size: int) -> bytes:
        """Return the bytes that follow a message."""
        return self._file.read(size)


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


_BUFFER = 1 << 16


def serve(descriptor: int, limits: Limits) -> None:
    """Read documents until the parent is gone.

    Args:
        descriptor: this end of the connection.
        limits: those of each document.
    """
    import pypdfium2.raw  # noqa: F401  (what it takes is no document's)

    confine()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb", _BUFFER) as file:
        child = _Child(ChildEnd(cast(BinaryIO, file)), limits)
        child.end.send({"ready": True})
        while (request := child.end.receive()) is not None:
            child.answer(request[1])


class _Child:
    def __init__(self, end: ChildEnd, limits: Limits) -> None:
        self.end = end
        self._limits = limits
        self._budget = Budget(limits)

    def answer(self, size: int) -> None:
        """Read one document, of ``size`` bytes, and send what is found."""
        self._budget.begin(size)
        try:
            self._read(self.end.body(size))
        except UnreadablePdf as error:
            self._refuse(str(error))
        except MemoryError:
            self.end.send({"memory": True})
        # Those are not the document's: this process ends, and its parent says so.
        except (ImportError, ConnectionError):
            raise
        # Libraries raise whatever they run into.
        except Exception as error:  # noqa: BLE001
            self._refuse(f"reading it fails: {type(error).__name__}: {error}")
        self._budget.end()

    def _read(self, data: bytes) -> None:
        with open_document(data, self._limits.pages) as document:
            self._describe(document)
            if (request := self.end.receive()) is None or "stop" in request[0]:
                return
            for header, body in self._items(document, data, request):
                self.end.send(header, body)
            self.end.send({"end": True})

    def _describe(self, document: PdfDocument) -> None:
        sizes = page_sizes(document, self._step)
        information = document.get_metadata_dict()
        title, author = (information.get(name) for name in ("Title", "Author"))
        description = json.dumps({"sizes": sizes, "title": title, "author": author}).encode()
        if len(description) > MAX_DESCRIPTION:
            raise UnreadablePdf(f"its title and author take more than {MAX_DESCRIPTION} bytes")
        self.end.send({"document": True}, description)

    def _items(
        self, document: PdfDocument, data: bytes, request: tuple[Header, int]
    ) -> Iterator[tuple[Header, bytes]]:
        header, size = request
        if "pictures" in header:
            boxes = json.loads(self.end.body(size))
            for picture in pictures_in(document, data, boxes, self._limits.items, self._step):
                yield _message(picture)
            return
        for item in items_by_layout(document, data, self._limits.items, self._step):
            content, body = _message(item.content)
            yield {"page": item.page, "number": item.number, "box": item.box, **content}, body

    def _step(self, page: int) -> None:
        """Begin a page, and say so."""
        self._budget.step()
        self.end.send({"page": page})
        self.end.flush()

    def _refuse(self, reason: str) -> None:
        self.end.send({"refused": True}, _words(reason))


def _message(content: str | Picture | Fault) -> tuple[Header, bytes]:
    if isinstance(content, str):
        return {"content": "text"}, content.encode()
    if isinstance(content, Fault):
        return {"content": "fault", "fault": content.kind}, _words(content.message)
    assert isinstance(content.data, bytes)
    return {"content": "picture", "suffix": content.suffix, "offset": content.offset}, content.data


def _words(text: str) -> bytes:
    return text.encode(errors="replace")[:MAX_WORDS]
