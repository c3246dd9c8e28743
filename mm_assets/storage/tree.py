"""Files and folders below a local folder, including folders behind links."""

from __future__ import annotations

import os
from collections import deque

from mm_assets.formats.names import TABLE_SUFFIXES

# The folder in which `mm-assets convert` lists what it left out, inside the output folder. Other names that
# begin with an underscore belong to the user.
LEDGER_BESIDE = "_ledger"
ORIGINS_BESIDE = ".origins"  # hidden, so that no client reads its files as data


class LocalTree:
    """All ``files`` and ``folders`` below a local folder.

    Hidden ones, each `is_metadata_folder` and the contents of Lance tables are left out. Links to folders are
    followed after all other folders, and no folder is searched twice. ``passed_over`` has a line for each
    link that is not followed because it leads to a parent folder, and for each folder that cannot be listed.

    Raises:
        OSError: the folder itself cannot be listed.
    """

    def __init__(self, root: str) -> None:
        self.files: list[str] = []
        self.folders: list[str] = []
        self.passed_over: list[str] = []
        self._root = os.path.realpath(root)
        self._known = {self._root}
        self._waiting = deque([(root, self._root)])  # path, and the same without links
        self._links: deque[str] = deque()
        self._list(*self._waiting.popleft())
        while self._waiting or self._links:
            if self._waiting:
                path, real = self._waiting.popleft()
                try:
                    self._list(path, real)
                except OSError as error:
                    self.passed_over.append(f"{path}: not looked into: {error.strerror}")
            else:
                self._follow(self._links.popleft())
        self.files.sort()
        self.folders.sort()

    def _list(self, path: str, real: str) -> None:
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            is_link = entry.is_symlink()
            if not (os.path.isdir(entry.path) if is_link else entry.is_dir()):
                if not entry.name.startswith("."):
                    self.files.append(entry.path)
            elif not is_metadata_folder(entry.name):
                self.folders.append(entry.path)
                if entry.name.endswith(TABLE_SUFFIXES):
                    continue
                if is_link:
                    self._links.append(entry.path)
                else:
                    self._enter(entry.path, os.path.join(real, entry.name))

    def _follow(self, link: str) -> None:
        real = os.path.realpath(link)
        if os.path.commonpath([real, self._root]) == real:
            self.passed_over.append(f"{link}: a link to a folder above it, not followed")
        else:
            self._enter(link, real)

    def _enter(self, path: str, real: str) -> None:
        if real not in self._known:
            self._known.add(real)
            self._waiting.append((path, real))


def is_metadata_folder(folder: str) -> bool:
    """Return whether a folder of this name holds no data: it is hidden, or the ledger of converted data."""
    return folder.startswith(".") or folder == LEDGER_BESIDE
