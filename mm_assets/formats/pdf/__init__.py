"""PDF files as raw shards: each becomes a sample of its texts and images in reading order (docs/pdf.md).

They are a file system, ``pdf://``. Here are the limits of what one PDF may take, and the errors of reading a
PDF and of the processes that do it.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from mm_assets.model.errors import DataError, MmAssetsError

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
