"""Files and folders below a local folder, links to folders included."""

from __future__ import annotations

import os
from collections import deque

from mm_assets.formats.format_table import TABLE_SUFFIXES

# Where `mm-assets convert` lists what it left out, in the output folder. Other names that begin with an
# underscore are the user's.
LEDGER_BESIDE = "_ledger"
ORIGINS_BESIDE = ".origins"  # hidden: no client takes what is in it for data


class LocalTree:
    """All ``files`` and ``folders`` below a local folder; without hidden ones and what `is_beside` the data,
    and nothing of Lance tables.

    Links to folders are followed once all other folders are known, and no folder is looked into twice: a link
    to one that has been is left. ``told`` has a line for each link that is not followed because it leads to a
    folder above, and for each folder that cannot be listed. Raises ``OSError`` for the folder itself.
    """

    def __init__(self, root: str) -> None:
        self.files: list[str] = []
        self.folders: list[str] = []
        self.told: list[str] = []
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
                    self.told.append(f"{path}: not looked into: {error.strerror}")
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
            elif not is_beside(entry.name):
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
            self.told.append(f"{link}: a link to a folder above it, not followed")
        else:
            self._enter(link, real)

    def _enter(self, path: str, real: str) -> None:
        if real not in self._known:
            self._known.add(real)
            self._waiting.append((path, real))


def is_beside(folder: str) -> bool:
    """Whether a folder of this name holds no data: a hidden one, or the ledger that lies beside converted
    data.
    """
    return folder.startswith(".") or folder == LEDGER_BESIDE
