"""An open PDF document, refused unless it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mm_assets.formats.pdf.errors import UnreadablePdf
from mm_assets.formats.pdf.geometry import Frame

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage

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
