"""The file or folder where an error happened, for errors that do not name it.

Most errors of object stores, and that of a full disk, name no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

TEMPORARY_FILES = "the folder {} for temporary files (TMPDIR)"
_NOTE = "at "


@contextmanager
def located(place: str) -> Iterator[None]:
    """Add ``place`` as a note to exceptions of the block that name no file; the innermost block wins.

    `place_of` reads the note.
    """
    try:
        yield
    except Exception as error:
        if place_of(error) is None:
            error.add_note(f"{_NOTE}{place}")
        raise


def place_of(error: BaseException) -> str | None:
    """Return the file that an error names, or the place `located` noted on it; None without either."""
    if isinstance(error, OSError) and error.filename is not None:
        # Of a rename the second name is the target.
        name = error.filename if error.filename2 is None else error.filename2
        return os.fsdecode(name) if isinstance(name, str | bytes) else str(name)
    notes = getattr(error, "__notes__", ())
    return next((note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)), None)
