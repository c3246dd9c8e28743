"""Local folders of a run on a Ray cluster: every node has to see the same ones."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from mm_assets.formats.temporary_files import create_locked, temporary_name

_seen: set[str] = set()  # paths that this process, a worker of a node, has found


class SharedFolders:
    """Paths by which a node knows that a folder is the same for it, until `close`.

    Args:
        written: folders that the run writes to: a hidden file is made in each.
        read: folders of raw shards: nothing is written there, so a node only looks whether they exist.

    Raises:
        OSError: such a file cannot be made.
    """

    def __init__(self, written: Sequence[str], read: Sequence[str]) -> None:
        self._stack = ExitStack()
        self.paths: dict[str, str] = {folder: folder for folder in read if os.path.exists(folder)}
        for folder in written:
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, temporary_name("ray"))
            self._stack.callback(os.close, create_locked(path))
            self._stack.callback(Path(path).unlink, missing_ok=True)
            self.paths[path] = folder

    def close(self) -> None:
        """Remove the hidden files."""
        with suppress(OSError):  # a file server that has gone meanwhile
            self._stack.close()


def missing_folder(paths: Mapping[str, str]) -> str | None:
    """Return the first folder whose path this node does not see; each path is looked up until it is found."""
    for path, folder in paths.items():
        if path not in _seen:
            if not os.path.exists(path):
                return folder
            _seen.add(path)
    return None
