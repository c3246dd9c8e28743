"""Errors of reading a PDF, and of the processes that do it."""

from __future__ import annotations

from mm_assets.interleaved.errors import DataError, MmAssetsError


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
