"""Record of the shard files that this process has verified.

Each is read once for its digest, not at every opening.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mm_assets.formats.arrow_cache.shards import CacheShard, file_digest
from mm_assets.interleaved.errors import DataError

# Identity of a file without reading it: device, inode, size, time of change.
FileStamp = tuple[int, int, int, int]

# The digests of verified files. Forked workers inherit them; spawned ones receive them with the pickled
# cache.
_VERIFIED: dict[FileStamp, str] = {}


def require_size(path: Path, shard: CacheShard) -> FileStamp:
    """Return the stamp of a shard's file.

    Raises:
        DataError: The file does not exist or has another size.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: Missing shard file") from None
    if status.st_size != shard.size:
        raise DataError(f"{path}: {status.st_size} bytes, not {shard.size}: the shard is damaged")
    return _stamp_of(status)


def check(path: Path, shard: CacheShard) -> None:
    """Read a shard and check its digest.

    Raises:
        DataError: The file is not as it was written; the message names it.
    """
    stamp = require_size(path, shard)
    _VERIFIED.pop(stamp, None)
    if (digest := file_digest(path)) != shard.digest:
        raise DataError(f"{path}: its digest is {digest}, not {shard.digest}: the shard is damaged")
    _VERIFIED[stamp] = digest


def check_once(path: Path, shard: CacheShard) -> None:
    """Call `check`, unless this process has done so and the file has not changed since."""
    if _VERIFIED.get(require_size(path, shard)) != shard.digest:
        check(path, shard)


def export_stamps(paths: Iterable[Path]) -> dict[FileStamp, str]:
    """Return what this process has verified of these files, for `import_stamps` in another process."""
    stamps = (_stamp_of(os.stat(path)) for path in paths if path.exists())
    return {stamp: _VERIFIED[stamp] for stamp in stamps if stamp in _VERIFIED}


def import_stamps(stamps: dict[FileStamp, str]) -> None:
    """Take over what another process has verified."""
    _VERIFIED.update(stamps)


def _stamp_of(status: os.stat_result) -> FileStamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
