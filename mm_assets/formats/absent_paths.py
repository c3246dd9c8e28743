"""Why nothing is at a path or URL: it is not there, or we may not look."""

from __future__ import annotations

import os

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

_WITH_BUCKETS = {"s3", "s3a", "gs", "gcs"}


def absent(item: str, fs: AbstractFileSystem, path: str, what: str = "file") -> OSError:
    """The error to raise where a path of ``fs``, called ``item`` in messages, leads to nothing, though
    ``what`` was looked for.
    """
    if isinstance(fs, LocalFileSystem):
        try:
            os.stat(path)
        except PermissionError as error:
            return error
        except (OSError, ValueError):  # ValueError: a null byte
            return FileNotFoundError(f"{item}: no such {what}")
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & _WITH_BUCKETS and not _has_bucket(fs, path.partition("/")[0]):
        return FileNotFoundError(f"{item}: no such bucket")
    return FileNotFoundError(f"{item}: no such {what}")


def _has_bucket(fs: AbstractFileSystem, bucket: str) -> bool:
    try:
        return bool(fs.exists(bucket))
    except PermissionError:  # it may be there
        return True
