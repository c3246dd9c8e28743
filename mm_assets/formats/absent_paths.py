"""Why nothing is found at a path or URL: it is not there, or we may not look."""

from __future__ import annotations

import os
from glob import glob

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

_WITH_BUCKETS = {"s3", "s3a", "gs", "gcs"}


def absent(item: str, fs: AbstractFileSystem, path: str, what: str = "file") -> OSError:
    """The error to raise where a path of ``fs``, called ``item`` in messages, leads to nothing, though ``what`` was looked for."""
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


def unreadable_folders(path: str) -> list[str]:
    """Folders below a local folder, or those that a pattern of files looks into, that listings pass over: nobody may look into them.

    Hidden ones are left out.
    """
    found: list[str] = []
    if os.path.isdir(path):
        for _, folders, _ in os.walk(path, onerror=lambda error: found.append(str(error.filename))):
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
        return sorted(found)
    candidates = glob(os.path.dirname(path) or ".", recursive=True)
    return sorted(folder for folder in candidates if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK))


def _has_bucket(fs: AbstractFileSystem, bucket: str) -> bool:
    try:
        return bool(fs.exists(bucket))
    except PermissionError:  # it may be there
        return True
