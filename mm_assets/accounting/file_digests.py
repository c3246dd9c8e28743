"""Digests of the small files beside the data of a shard: ledger, scores and quarantine.

The digests are in the shard's record, under ``files`` of its account: path below the storage root -> bytes
and xxh3-128 of the file, or null where the shard has no such file. With them, missing or changed files are
found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mm_assets.accounting.records import ShardRecord
from mm_assets.formats.arrow_cache.shards import digest_of
from mm_assets.formats.storage import StorageOptions, filesystem, is_remote, join, open_binary

FILES = "files"

_THREADS = 16  # object stores answer in ~50 ms

FileDigest = Mapping[str, Any]


def digest_files(
    root: str, uris: Iterable[str], options: StorageOptions | None = None
) -> dict[str, FileDigest | None]:
    """Return the present digests of files below ``root``, by path below it; None for missing files.

    Every byte is read.
    """
    uris = list(uris)
    if is_remote(root):
        filesystem(root, options)[0].invalidate_cache()
    with ThreadPoolExecutor(_THREADS if is_remote(root) else 1) as threads:
        found = threads.map(lambda uri: _digest(uri, options), uris)
        return {uri.removeprefix(join(root, "")): digest for uri, digest in zip(uris, found, strict=True)}


def recorded_files(record: ShardRecord, *uris: str) -> dict[str, FileDigest | None]:
    """Return the digests in a shard's record, of all its files or of those among ``uris``.

    Records of older versions have none.
    """
    files: Mapping[str, FileDigest | None] = record.account.get(FILES, {})
    return {
        path: digest
        for path, digest in files.items()
        if not uris or any(uri.endswith(f"/{path}") for uri in uris)
    }


def file_problems(
    root: str, written: Mapping[str, FileDigest | None], options: StorageOptions | None = None
) -> list[str]:
    """Return a line for each file below ``root`` that is not as written: missing, cut, changed or unexpected.

    Args:
        root: the storage root.
        written: digests from the record, see `recorded_files`.
        options: for the file system.
    """
    found = digest_files(root, [join(root, path) for path in written], options)
    return [line for path, digest in written.items() if (line := _problem(path, digest, found[path]))]


def shards_with_problems(
    root: str, records: Iterable[ShardRecord], options: StorageOptions | None = None
) -> dict[str, list[str]]:
    """Return the `file_problems` of some shards by key, without shards that have none.

    The files of all shards are read in one go.
    """
    written = {record.key: recorded_files(record) for record in records}
    found = digest_files(root, [join(root, path) for files in written.values() for path in files], options)
    lines = {
        key: [_problem(path, digest, found[path]) for path, digest in files.items()]
        for key, files in written.items()
    }
    return {
        key: problems
        for key, shard_lines in lines.items()
        if (problems := [line for line in shard_lines if line])
    }


def _digest(uri: str, options: StorageOptions | None) -> FileDigest | None:
    try:
        with open_binary(uri, options) as file:
            digest = digest_of(file)
            return {"bytes": file.tell(), "digest": digest}
    except FileNotFoundError:
        return None


def _problem(path: str, written: FileDigest | None, found: FileDigest | None) -> str:
    if written == found:
        return ""
    if written is None:
        return f"{path}: nothing was written, and yet there is a file"
    if found is None:
        return f"{path}: missing"
    if written["bytes"] != found["bytes"]:
        return f"{path}: {written['bytes']} bytes written, {found['bytes']} found"
    return f"{path}: other bytes than were written"
