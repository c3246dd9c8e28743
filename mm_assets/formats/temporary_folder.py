"""A folder for the temporary files of all processes of a pool, of killed ones too."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from mm_assets.formats.temporary_files import is_stale, is_temporary, temporary_name

_NAME = "mm-assets"


class TemporaryFolder:
    """A folder that only this user may enter, below the system's folder of temporary files (``TMPDIR``).

    Folders of processes that have died are removed when a new one is made.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        _remove_stale(parent)
        self.path = str(parent / temporary_name(_NAME))
        os.mkdir(self.path, mode=0o700)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # not all file systems have locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_stale(parent: Path) -> None:
    with os.scandir(parent) as entries:
        ours = [
            Path(entry.path)
            for entry in entries
            if is_temporary(entry.name) and entry.name.startswith(f".{_NAME}.") and _is_own_folder(entry)
        ]
    for folder in ours:
        if is_stale(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except FileNotFoundError:
        return False
