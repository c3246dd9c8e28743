"""Warnings as lines that a user can read: of the command line, the demo and all workers."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any


def show_warnings_as_lines() -> None:
    """From now on print each distinct warning of this process once, as one line on stderr, without file and
    code.

    So are the log records of libraries from level WARNING on, as far as nobody has configured a handler for
    them.
    """
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        line = warning_line(message)
        if line not in shown:
            shown.add(line)
            sys.stderr.write(f"{line}\n")  # at once: other processes write there, too

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(record.getMessage())

    warnings.showwarning = show
    logging.lastResort = Lines(logging.WARNING)


def warning_line(message: Warning | str) -> str:
    """The line that tells of a warning."""
    return f"mm-assets: warning: {' '.join(str(message).split())}"
