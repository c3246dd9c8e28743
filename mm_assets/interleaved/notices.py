"""Warnings: attributed to the user's own line of code, and printed as one line each."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def warn_user(message: str) -> None:
    """Issue a ``UserWarning`` attributed to the nearest caller outside this package."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level)


class OnScreen(Protocol):
    """A line on the terminal that is drawn over itself, as that of progress."""

    def clear(self) -> None: ...
    def redraw(self) -> None: ...


on_screen: list[OnScreen] = []


def show_warnings_as_lines(tell: Callable[[str], None] | None = None) -> None:
    """Tell each distinct warning of this process once, as one line, without file and code.

    The same holds for log records of libraries from level WARNING on, unless a handler is configured for
    them.

    Args:
        tell: gets its text. None: it is printed on stderr.
    """
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text in shown:
            return
        shown.add(text)
        if tell is None:
            write_line(warning_line(text))
        else:
            tell(text)

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(record.getMessage())

    warnings.showwarning = show
    logging.lastResort = Lines(logging.WARNING)


def write_line(line: str) -> None:
    """Write a line to stderr, in one piece, as other processes write there as well.

    It goes above what is `on_screen`. A stderr that takes nothing (a full disk, a closed pipe) fails no work.
    """
    for drawn in on_screen:
        drawn.clear()
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")
    for drawn in on_screen:
        drawn.redraw()


def warning_line(message: Warning | str) -> str:
    """Return the line that shows a warning."""
    return f"mm-assets: warning: {' '.join(str(message).split())}"
