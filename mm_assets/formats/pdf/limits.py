"""Limits of what one PDF may take."""

from __future__ import annotations

from dataclasses import dataclass

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
