"""Errors of reading a PDF, and of the processes that do it."""

from __future__ import annotations

import signal

from mm_assets.interleaved.errors import DataError, MmAssetsError

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
