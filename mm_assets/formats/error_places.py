"""Where an error happened, for errors that do not say so themselves: most of an object store's, and a full
disk's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

TEMPORARY_FILES = "the folder {} for temporary files (TMPDIR)"
_NOTE = "at "


@contextmanager
def located(place: str) -> Iterator[None]:
    """Errors of the block that name no file get ``place`` as a note; `place_of` finds it. The innermost
    block's place stays.
    """
    try:
        yield
    except Exception as error:
        if place_of(error) is None:
            error.add_note(f"{_NOTE}{place}")
        raise


def place_of(error: BaseException) -> str | None:
    """The file that an error names, else the place that it was given; None for neither."""
    if isinstance(error, OSError) and error.filename is not None:
        name = (
            error.filename if error.filename2 is None else error.filename2
        )  # of a rename: what it was to be called
        return os.fsdecode(name) if isinstance(name, str | bytes) else str(name)
    notes = getattr(error, "__notes__", ())
    return next((note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)), None)
