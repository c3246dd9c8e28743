"""Stamps of files: short texts that change whenever a file's content does, made without reading it all."""

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

# A change that keeps size and time (a tool that copies times, a restored backup) mostly shows in the first
# JSON or the last members. Reading both ends of 4,000 shards takes 0.13 s; a digest of all bytes would cost
# as much as reading the dataset.
_END_BYTES = 64 << 10


def local_stamp(file: str) -> str:
    """Return size, modification time and a digest of the first and last 64 KiB; ``MISSING`` if unreadable."""
    try:
        found = os.stat(file)
        ends = _digest_of_ends(file, found.st_size) if stat.S_ISREG(found.st_mode) else ""
    except OSError:  # a broken link, a removed or unreadable file: only its shard fails, when it is read
        return MISSING
    return f"{found.st_size}:{found.st_mtime_ns}:{ends}"


def remote_stamps(files: Iterable[str], options: StorageOptions | None = None) -> dict[str, str]:
    """Return the etag, or size and time, of each URL; ``MISSING`` for missing or inaccessible files.

    Files of one folder are listed together: one request per thousand files of the folder, none if the folder
    was listed just before.
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
    """List a folder by path; None where listing is impossible (web servers, file-only permissions)."""
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
