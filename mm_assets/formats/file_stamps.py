"""What a file looks like from outside: it changes whenever the content does, and is had without reading the
content.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

import fsspec
import xxhash

from mm_assets.formats.error_places import located
from mm_assets.formats.storage import StorageOptions, filesystem

MISSING = "missing"

# A change that keeps size and time (a tool that copies times, a second restored) mostly shows in the first
# JSON or the last members. Both ends of 4,000 shards take 0.13 s; a digest of all bytes would cost as much as
# reading the data set.
_END_BYTES = 64 << 10


def local_stamp(file: str) -> str:
    """Size, modification time and a digest of the first and last 64 KiB; ``MISSING`` where there is no file
    to be read.
    """
    try:
        found = os.stat(file)
        ends = _digest_of_ends(file, found.st_size) if stat.S_ISREG(found.st_mode) else ""
    except (
        OSError
    ):  # a link that leads nowhere, a file just gone or not for us: its shard fails, alone, when it is read
        return MISSING
    return f"{found.st_size}:{found.st_mtime_ns}:{ends}"


def remote_stamps(files: Iterable[str], options: StorageOptions | None = None) -> dict[str, str]:
    """By URL the etag, or size and time; ``MISSING`` for a file that is not there or not for us.

    Files of one folder are asked for together: one request a thousand files of the folder, none if it was
    listed just before.
    """
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(file.rpartition("/")[0], []).append(file)
    stamps: dict[str, str] = {}
    for folder, names in folders.items():
        fs, path = filesystem(folder, options)
        with located(folder):
            listed = _listed(fs, path) if len(names) > 1 else None
        for name in names:
            _, path = filesystem(name, options)
            with located(name):
                info = listed.get(path) if listed is not None else _info(fs, path)
            stamps[name] = (
                _stamp_of(info) if info is not None and info.get("type") != "directory" else MISSING
            )
    return stamps


def _digest_of_ends(file: str, size: int) -> str:
    with open(file, "rb", buffering=0) as stream:
        digest = xxhash.xxh3_64(stream.read(_END_BYTES))
        if size > _END_BYTES:
            stream.seek(max(_END_BYTES, size - _END_BYTES))
            digest.update(stream.read(_END_BYTES))
    return digest.hexdigest()


def _listed(fs: fsspec.AbstractFileSystem, folder: str) -> dict[str, Mapping[str, Any]] | None:
    """What is in a folder, by path; None where the listing cannot be had (web servers, buckets that only give
    single files).
    """
    if "http" in fs.protocol or "https" in fs.protocol:
        return None
    try:
        return {str(info["name"]): info for info in fs.ls(folder, detail=True)}
    except FileNotFoundError:
        return {}
    except PermissionError:
        return None


def _info(fs: fsspec.AbstractFileSystem, path: str) -> Mapping[str, Any] | None:
    try:
        return dict(fs.info(path))
    except (FileNotFoundError, PermissionError):
        return None


def _stamp_of(info: Mapping[str, Any]) -> str:
    return str(
        info.get("ETag")
        or info.get("etag")
        or f"{info['size']}:{info.get('LastModified') or info.get('mtime')}"
    )
