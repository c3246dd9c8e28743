"""One-line error messages for users: where, what, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mm_assets.formats.error_places import place_of, temporary_place
from mm_assets.formats.store_errors import StoreError, is_of_store, store_error_message
from mm_assets.formats.stores import without_secrets
from mm_assets.interleaved.extras import explained

# Errors that data or the system cause. Of any other class the name is shown too: it is a bug of ours.
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

# What libraries put into their messages: the system's error number, the file, and (Lance) source code
# locations.
_SYSTEM_ERROR = re.compile(r"\[errno (\d+)\]|\(os error (\d+)\)", re.IGNORECASE)
_SYSTEM_PREFIX = re.compile(r"^\[Errno \d+\] ")
_QUOTED_FILE = re.compile(r"local file '(.+?)'")
_SOURCE_CODE = re.compile(r",? /\S+\.rs:\d+(:\d+)?")
_LANCE = "LanceError("
_OWN_TEMPORARY = re.compile(r"/?\.[^/]*\.tmp$")


def error_line(error: BaseException) -> str:
    """Return an error as one line without traceback or secrets of URLs; unexpected classes are named."""
    return without_secrets(_line_of(error))


def _line_of(error: BaseException) -> str:
    if isinstance(error, ImportError):
        error = explained(error)
    if isinstance(error, StoreError):
        return str(error)
    if is_of_store(error):
        return _at(place_of(error), store_error_message(error))
    if isinstance(error, MemoryError):
        return _at(place_of(error), _OUT_OF_MEMORY)
    message = _SOURCE_CODE.sub("", " ".join(str(error).split()))
    if isinstance(error, OSError) or message.startswith(_LANCE):
        return _of_system(error, message)
    if isinstance(error, UnicodeEncodeError) and error.reason.startswith("surrogates"):
        return not_utf8(error.object)
    return (
        message
        if isinstance(error, _EXPECTED) and message
        else f"{type(error).__name__}: {message}".removesuffix(": ")
    )


def is_utf8(name: str) -> bool:
    """Return whether a file name can be part of a partition's name or a sample's id: it is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def not_utf8(name: str) -> str:
    """Return the line for a file name that is not UTF-8, on disk or as this locale reads it."""
    is_utf8 = sys.getfilesystemencoding().lower() == "utf-8"
    hint = (
        "rename the file or folder"
        if is_utf8
        else "rename the file or folder, or set LANG=C.UTF-8 if its name is UTF-8"
    )
    return f"{name[:200]!a}: a name that is not UTF-8; {hint}"


def cause_line(error: BaseException, place: str) -> str:
    """Return the `error_line` without ``place`` in front, for messages that name the place themselves."""
    return error_line(error).removeprefix(f"{place}: ")


@contextmanager
def readable_store_errors() -> Iterator[None]:
    """Raise errors of object store clients as `StoreError`, whose message any caller can show."""
    try:
        yield
    except Exception as error:
        if not is_of_store(error):
            raise
        holds_secret = without_secrets(str(error)) != str(error)  # Dagster stores the cause, too
        raise StoreError(error_line(error)) from (None if holds_secret else error)


def _of_system(error: BaseException, message: str) -> str:
    match = _SYSTEM_ERROR.search(message)
    number = getattr(error, "errno", None) or (int(match[1] or match[2]) if match else None)
    named = _QUOTED_FILE.search(message)
    place = named[1] if named else place_of(error)
    if number is None or place is None:
        message = _SYSTEM_PREFIX.sub("", message) or type(error).__name__
        names_itself = ": " in message and not message.startswith(_LANCE)  # our own messages are "file: what"
        return message if names_itself else _at(place, message)
    # No store reports a full disk: it is the disk of the local file that is uploaded.
    if number in _FULL and "://" in place:
        place = temporary_place()
    return _at(_OWN_TEMPORARY.sub("", place), _WORDS.get(number) or os.strerror(number).lower())


def _at(place: str | None, words: str) -> str:
    return words if place is None or words.startswith(place) else f"{place}: {words}"
