"""An error as one line that a user can act on: where, what, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from mm_assets.extras import explained
from mm_assets.formats.error_places import TEMPORARY_FILES, place_of
from mm_assets.formats.store_errors import StoreError, is_of_store, told_by_store

# Of an error of another class the name is told, too: it is not the data's, but ours.
_EXPECTED = (ValueError, OSError, MemoryError)

_WORDS = {
    errno.ENOENT: "no such file or folder",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EEXIST: "a file, not a folder",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EISDIR: "a folder, not a file",
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EMFILE: "too many open files: raise the limit with `ulimit -n`",
    errno.ENAMETOOLONG: "the name is too long",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OUT_OF_MEMORY = (
    "out of memory: use fewer workers (MM_WORKERS, --workers), or smaller batches (--max-batch-bytes)"
)

# What libraries put into their messages: the number of the system's error, its file, and (Lance) places in
# their source code.
_SYSTEM_ERROR = re.compile(r"\[errno (\d+)\]|\(os error (\d+)\)", re.IGNORECASE)
_SYSTEM_PREFIX = re.compile(r"^\[Errno \d+\] ")
_QUOTED_FILE = re.compile(r"local file '(.+?)'")
_SOURCE_CODE = re.compile(r",? /\S+\.rs:\d+(:\d+)?")
_LANCE = "LanceError("
_OWN_TEMPORARY = re.compile(r"/?\.[^/]*\.tmp$")


def error_line(error: BaseException) -> str:
    """One line, without a traceback; the class of the error is named where it is none that data or paths
    cause.
    """
    if isinstance(error, ImportError):
        error = explained(error)
    if isinstance(error, StoreError):
        return str(error)
    if is_of_store(error):
        return _at(place_of(error), told_by_store(error))
    if isinstance(error, MemoryError):
        return _at(place_of(error), _OUT_OF_MEMORY)
    own = _SOURCE_CODE.sub("", " ".join(str(error).split()))
    if isinstance(error, OSError) or own.startswith(_LANCE):
        return _of_system(error, own)
    if isinstance(error, UnicodeEncodeError) and error.reason.startswith("surrogates"):
        return not_utf8(error.object)
    return (
        own if isinstance(error, _EXPECTED) and own else f"{type(error).__name__}: {own}".removesuffix(": ")
    )


def not_utf8(name: str) -> str:
    """The line about a name with bytes that are no text: the file system has such a name, or this locale
    reads it as no UTF-8.
    """
    is_utf8 = sys.getfilesystemencoding().lower() == "utf-8"
    hint = (
        "rename the file or folder"
        if is_utf8
        else "rename the file or folder, or set LANG=C.UTF-8 if its name is UTF-8"
    )
    return f"{name[:200]!a}: a name that is not UTF-8; {hint}"


def cause_line(error: BaseException, place: str) -> str:
    """The `error_line` for a message that names ``place`` itself."""
    return error_line(error).removeprefix(f"{place}: ")


@contextmanager
def told_in_words() -> Iterator[None]:
    """Errors of an object store's client are raised as `StoreError`: who shows them knows nothing of clients."""
    try:
        yield
    except Exception as error:
        if not is_of_store(error):
            raise
        raise StoreError(error_line(error)) from error


def _of_system(error: BaseException, own: str) -> str:
    match = _SYSTEM_ERROR.search(own)
    number = getattr(error, "errno", None) or (int(match[1] or match[2]) if match else None)
    named = _QUOTED_FILE.search(own)
    place = named[1] if named else place_of(error)
    if number is None or place is None:
        own = _SYSTEM_PREFIX.sub("", own) or type(error).__name__
        names_itself = ": " in own and not own.startswith(_LANCE)  # what we raise does: "file: what"
        return own if names_itself else _at(place, own)
    if number in _FULL and "://" in place:  # no store says so: it is what is made here before it is put there
        place = TEMPORARY_FILES.format(tempfile.gettempdir())
    return _at(_OWN_TEMPORARY.sub("", place), _WORDS.get(number) or os.strerror(number).lower())


def _at(place: str | None, words: str) -> str:
    return words if place is None or words.startswith(place) else f"{place}: {words}"
