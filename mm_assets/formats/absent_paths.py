"""Errors for paths and URLs where nothing is found: missing, or not accessible."""

from __future__ import annotations

import os

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

# What a store calls that which the first part of a path names.
_BUCKETS = {"s3": "bucket", "gs": "bucket", "az": "container"}


def absent(item: str, fs: AbstractFileSystem, path: str, what: str = "file") -> OSError:
    """Return the error to raise for a path that leads to nothing.

    Args:
        item: the path as the user wrote it; messages name it.
        fs: the file system.
        path: the path on ``fs``.
        what: the kind of thing that was looked for.
    """
    if isinstance(fs, LocalFileSystem):
        try:
            os.stat(path)
        except PermissionError as error:
            return error
        except (OSError, ValueError):  # ValueError: a null byte
            return FileNotFoundError(f"{item}: no such {what}")
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    bucket = next((name for scheme, name in _BUCKETS.items() if scheme in protocols), None)
    if bucket is not None and not _has_bucket(fs, path.partition("/")[0]):
        return FileNotFoundError(f"{item}: no such {bucket}")
    return FileNotFoundError(f"{item}: no such {what}")


def _has_bucket(fs: AbstractFileSystem, bucket: str) -> bool:
    try:
        return bool(fs.exists(bucket))
    except PermissionError:  # the bucket may exist
        return True
