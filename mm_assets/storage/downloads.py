"""Local copies of remote files that are read more than once: for ids and types first, then whole.

The processes of a worker pool share them, in the pool's own folder of temporary files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import xxhash

from mm_assets.storage.errors import located, temporary_place
from mm_assets.storage.files import StorageOptions, open_binary, size_of

_BLOCK = 1 << 20
_SHARE_OF_FREE = 4  # copies take a quarter of what is free on the disk
# What changes whenever an object's content does. A time of change may be too coarse for that.
_CONTENT_MARKS = ("ETag", "etag")


@dataclass(frozen=True)
class KeptCopies:
    """Where copies are kept, and how many bytes of them together; what exceeds that is fetched again."""

    folder: str
    max_bytes: int

    @classmethod
    def beside(cls, folder: str) -> KeptCopies:
        """Make a folder for copies in a folder of temporary files."""
        copies = os.path.join(folder, "copies")
        os.makedirs(copies, mode=0o700)
        return cls(copies, shutil.disk_usage(copies).free // _SHARE_OF_FREE)

    def has_room(self) -> bool:
        """Return whether the copies, with those that are being made, are not too large together."""
        used = 0
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed by another worker
                    used += entry.stat().st_size
        return used <= self.max_bytes


_kept: KeptCopies | None = None


def keep_copies(kept: KeptCopies | None) -> None:
    """Keep copies from now on in this process, or keep none."""
    global _kept
    _kept = kept


class Download:
    """An open remote file, or the copy of it that an earlier pass has kept; ``file`` is at its start.

    A copy is made where `keep_copies` was called, and kept if there is room.

    Raises:
        OSError: it cannot be opened or read.
    """

    def __init__(self, uri: str, options: StorageOptions | None = None) -> None:
        self.file: IO[bytes] = open_binary(uri, options)
        known = getattr(self.file, "size", None)
        self.size: int = known if isinstance(known, int) else size_of(uri, options)  # in bytes
        self._copy: Path | None = None
        mark = _mark_of(self.file)
        if _kept is None or mark is None:
            return
        self._copy = Path(_kept.folder, xxhash.xxh3_128_hexdigest(f"{uri}\n{mark}".encode()))
        with self.file as remote:
            self.file = self._opened_copy() or self._fetched(remote, _kept)

    def forget(self) -> None:
        """Remove the copy, once the file has been read whole."""
        if self._copy is not None:
            self._copy.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; a kept copy stays."""
        self.file.close()

    def _opened_copy(self) -> IO[bytes] | None:
        assert self._copy is not None
        try:
            return open(self._copy, "rb", buffering=0)
        except FileNotFoundError:
            return None

    def _fetched(self, remote: Any, kept: KeptCopies) -> IO[bytes]:
        assert self._copy is not None
        with located(temporary_place()):
            descriptor, name = tempfile.mkstemp(dir=kept.folder)
        file = os.fdopen(descriptor, "w+b", buffering=0)
        try:
            while block := remote.read(_BLOCK):
                view = memoryview(block)
                with located(temporary_place()):
                    while view:
                        view = view[file.write(view) :]
            if kept.has_room():
                os.replace(name, self._copy)
            else:
                os.unlink(name)
        except BaseException:
            file.close()
            Path(name).unlink(missing_ok=True)
            raise
        file.seek(0)
        return file


def _mark_of(file: IO[bytes]) -> str | None:
    """Return what tells the content of an open remote file from others; None if the store does not say."""
    details = getattr(file, "details", None)
    if not isinstance(details, dict):
        return None
    mark = next((details[name] for name in _CONTENT_MARKS if details.get(name)), None)
    return None if mark is None else f"{mark}\n{details.get('size')}"
