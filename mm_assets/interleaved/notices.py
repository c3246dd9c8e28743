"""Warnings that point at the user's own line, however many of our frames lie in between."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def warn_user(message: str) -> None:
    """Issue a ``UserWarning`` attributed to the nearest caller outside this package."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level)
