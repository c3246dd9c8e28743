"""The small files that the making of a shard leaves beside the data, ledger, scores and quarantine: whether
they are as they were written.

What they held is in the shard's record, under ``files`` of its account: path below the storage root -> bytes
and xxh3-128 of the file, or null where the shard had nothing to say and so has no file.
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
    """What files below ``root`` hold now, by their paths below it; None for one that is not there. Every byte
    is read.
    """
    uris = list(uris)
    if is_remote(root):
        filesystem(root, options)[0].invalidate_cache()
    with ThreadPoolExecutor(_THREADS if is_remote(root) else 1) as threads:
        found = threads.map(lambda uri: _digest(uri, options), uris)
        return {uri.removeprefix(join(root, "")): digest for uri, digest in zip(uris, found, strict=True)}


def recorded_files(record: ShardRecord, *uris: str) -> dict[str, FileDigest | None]:
    """What the record of a shard says of its files, or of those among ``uris``; nothing, where an older
    version wrote it.
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
    """A line for each file below ``root`` that is not as it was written (`recorded_files`): missing, cut,
    changed, or there without a reason.
    """
    found = digest_files(root, [join(root, path) for path in written], options)
    return [line for path, digest in written.items() if (line := _problem(path, digest, found[path]))]


def shards_with_problems(
    root: str, records: Iterable[ShardRecord], options: StorageOptions | None = None
) -> dict[str, list[str]]:
    """The `file_problems` of some shards of an asset, by key, without those that have none; all files are
    asked for at once.
    """
    written = {record.key: recorded_files(record) for record in records}
    found = digest_files(root, [join(root, path) for files in written.values() for path in files], options)
    lines = {
        key: [_problem(path, digest, found[path]) for path, digest in files.items()]
        for key, files in written.items()
    }
    return {key: told for key, some in lines.items() if (told := [line for line in some if line])}


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
