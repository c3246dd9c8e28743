"""Which shard files this process has read and found as they were written: each is read once for its digest,
not at every opening.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mm_assets.formats.arrow_cache.shards import CacheShard, file_digest

# What a file looks like from outside: device, inode, size, time of change.
Look = tuple[int, int, int, int]

# The digests of files that were found right. Forked workers inherit them; spawned ones are sent them with the
# cache.
_LOOKS: dict[Look, str] = {}


def require_size(path: Path, shard: CacheShard) -> Look:
    """What a shard's file looks like. Raises ``ValueError`` if it is not there or of another size."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path}: Missing shard file") from None
    if found.st_size != shard.size:
        raise ValueError(f"{path}: {found.st_size} bytes, not {shard.size}: the shard is damaged")
    return _look(found)


def check(path: Path, shard: CacheShard) -> None:
    """Read a shard. Raises ``ValueError`` naming the file if it is not as it was written."""
    look = require_size(path, shard)
    _LOOKS.pop(look, None)
    if (digest := file_digest(path)) != shard.digest:
        raise ValueError(f"{path}: its digest is {digest}, not {shard.digest}: the shard is damaged")
    _LOOKS[look] = digest


def check_once(path: Path, shard: CacheShard) -> None:
    """`check`, unless this process has done it and the file has not changed since."""
    if _LOOKS.get(require_size(path, shard)) != shard.digest:
        check(path, shard)


def known(paths: Iterable[Path]) -> dict[Look, str]:
    """What this process has found of these files, for `learn` in another process."""
    looks = (_look(os.stat(path)) for path in paths if path.exists())
    return {look: _LOOKS[look] for look in looks if look in _LOOKS}


def learn(looks: dict[Look, str]) -> None:
    _LOOKS.update(looks)


def _look(found: os.stat_result) -> Look:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
