"""An open PDF document: refused unless it is whole, and never used by two threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mm_assets.formats.pdf.geometry import Frame
from mm_assets.formats.webdataset.payload import SampleError
from mm_assets.interleaved.faults import UNREADABLE_PDF

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage

MAX_PAGES = 10_000
MAX_POINTS = 200 * 72  # largest side of a page: 200 inches, by the PDF standard

_ENDS = 1024  # bytes: other readers, too, search as many for the first and the last mark
_LOCK = threading.RLock()  # pdfium may be called by one thread at a time


@contextmanager
def open_document(data: bytes, place: str) -> Iterator[PdfDocument]:
    """Open a document; no other thread of this process opens one meanwhile.

    pdfium itself mends what is cut or damaged, with what it finds, and says nothing. So a file that it has
    to mend is refused.

    Args:
        data: the file.
        place: its name in errors.

    Raises:
        SampleError: it is no PDF, encrypted, cut, damaged, has no pages or too many, or pdfium fails while
            it is used.
    """
    import pypdfium2
    import pypdfium2.raw as pdfium

    if b"%PDF-" not in data[:_ENDS]:
        raise unreadable(place, "no PDF: it does not begin with %PDF-")
    if b"%%EOF" not in data[-_ENDS:]:
        raise unreadable(place, "the file is cut: it does not end with %%EOF")
    with _LOCK:
        try:
            document = pypdfium2.PdfDocument(data)
        except pypdfium2.PdfiumError as error:
            needs_password = error.err_code == pdfium.FPDF_ERR_PASSWORD
            reason = (
                "encrypted: it needs a password"
                if needs_password
                else f"pdfium cannot open it, it is broken or has no pages: {error}"
            )
            raise unreadable(place, reason) from error
        try:
            if not pdfium.FPDF_DocumentHasValidCrossReferenceTable(document):
                hint = "mend the file first (qpdf broken.pdf mended.pdf)"
                raise unreadable(place, f"its cross-reference table is damaged: {hint}")
            if not 0 < len(document) <= MAX_PAGES:
                raise unreadable(place, f"{len(document)} pages, at least 1 and at most {MAX_PAGES}")
            yield document
        except (pypdfium2.PdfiumError, UnicodeError) as error:
            raise unreadable(place, f"pdfium cannot read it: {error}") from error
        finally:
            document.close()


def unreadable(place: str, reason: str) -> SampleError:
    """Return the error of a PDF that cannot be used."""
    return SampleError(UNREADABLE_PDF, f"{place}: {reason}")


@contextmanager
def open_page(document: PdfDocument, number: int, place: str) -> Iterator[tuple[PdfPage, Frame]]:
    """Open a page, counted from 1, and yield it with its frame.

    Raises:
        SampleError: it cannot be opened, or is empty or too large.
    """
    import pypdfium2

    try:
        page = document[number - 1]
    except pypdfium2.PdfiumError as error:
        raise unreadable(place, f"page {number} cannot be opened: {error}") from error
    try:
        left, bottom, right, top = page.get_bbox()
        frame = Frame(left, bottom, right, top, page.get_rotation())
        if not all(1 <= side <= MAX_POINTS for side in frame.size):
            width, height = frame.size
            raise unreadable(
                place, f"page {number} has {width:g} x {height:g} points, at most {MAX_POINTS} a side"
            )
        yield page, frame
    finally:
        page.close()
