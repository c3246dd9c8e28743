"""What a process that reads PDFs allows itself: memory for each document, CPU time for each page."""

from __future__ import annotations

import ctypes
import math
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from mm_assets.formats.pdf.errors import UnreadablePdf
from mm_assets.formats.pdf.limits import Limits

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
