"""The file or folder where an error happened, for errors that do not name it.

Most errors of object stores, and that of a full disk, name no file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from mm_assets.formats.temporary_files import is_temporary

_NOTE = "at "
_REQUEST = "request for "  # what a client asked for: a place where nobody knows a better one


def temporary_place() -> str:
    """Return the folder of temporary files, as the user has set it: a pool's own folder lies in it."""
    path = tempfile.gettempdir()
    folder, name = os.path.split(path)
    return f"the folder {folder if is_temporary(name) else path} for temporary files (TMPDIR)"


@contextmanager
def located(place: str) -> Iterator[None]:
    """Add ``place`` as a note to exceptions of the block that name no file; the innermost block wins.

    `place_of` reads the note.
    """
    try:
        yield
    except Exception as error:
        if _named_place(error) is None:
            error.add_note(f"{_NOTE}{place}")
        raise


def note_request(error: BaseException, url: str) -> None:
    """Note on an error what the request that failed was for, in case that nobody notes a place."""
    error.add_note(f"{_REQUEST}{url}")


def place_of(error: BaseException) -> str | None:
    """Return the file that an error names, or the place `located` noted on it; None without either."""
    return _named_place(error) or _noted(error, _REQUEST)


def _named_place(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.filename is not None:
        # Of a rename the second name is the target.
        name = error.filename if error.filename2 is None else error.filename2
        return os.fsdecode(name) if isinstance(name, str | bytes) else str(name)
    return _noted(error, _NOTE)


def _noted(error: BaseException, kind: str) -> str | None:
    notes = getattr(error, "__notes__", ())
    return next((note.removeprefix(kind) for note in notes if note.startswith(kind)), None)
