"""Small files in a folder, local or behind a URL: many are read at once, each is written as a whole."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from pathlib import Path

from mm_assets.formats import storage


class FolderFiles:
    """Files by their names relative to ``folder``, a local path or an fsspec URL."""

    def __init__(
        self, folder: str | os.PathLike[str], storage_options: storage.StorageOptions | None = None
    ) -> None:
        self.folder = os.fspath(folder).rstrip("/") or "/"
        self._options = storage_options
        self._is_remote = storage.is_remote(self.folder)
        self._root = self.folder if self._is_remote else storage.local_path(self.folder)

    def _uri(self, name: str) -> str:
        return storage.join(self._root, name) if name else self._root

    def _read(self, name: str) -> bytes | None:
        return self._read_many([name]).get(name)

    def _read_many(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of those files that exist."""
        if not self._is_remote:
            found = ((name, storage.local_bytes(self._uri(name))) for name in names)
            return {name: content for name, content in found if content is not None}
        fs, _ = storage.filesystem(self._root, self._options)
        paths_of = {name: storage.filesystem(self._uri(name), self._options)[1] for name in names}
        if not paths_of:
            return {}
        found = fs.cat(list(paths_of.values()), on_error="return")
        contents: dict[str, bytes] = {}
        for name, path in paths_of.items():
            content = found[path]
            if isinstance(content, FileNotFoundError):
                continue
            if isinstance(content, Exception):
                raise content
            contents[name] = content
        return contents

    def _list(self, folder: str) -> dict[str, int]:
        """Return names and sizes of the files directly in a sub-folder; empty if it does not exist."""
        if not self._is_remote:
            path = self._uri(folder)
            entries = os.scandir(path) if os.path.isdir(path) else ()
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        fs, path = storage.filesystem(self._uri(folder), self._options)
        fs.invalidate_cache()
        try:
            return {
                posixpath.basename(i["name"]): i["size"]
                for i in fs.ls(path, detail=True)
                if i["type"] == "file"
            }
        except FileNotFoundError:  # object stores have no empty folders
            return {}

    def _write(self, name: str, content: str | bytes) -> None:
        with storage.staged(self._uri(name), self._options) as file:
            Path(file.path).write_bytes(content.encode() if isinstance(content, str) else content)
            file.publish()

    def _write_if_new(self, name: str, content: str | bytes) -> bool:
        raw = content.encode() if isinstance(content, str) else content
        if self._read(name) == raw:
            return False
        self._write(name, raw)
        return True

    def _remove(self, name: str) -> None:
        if not self._is_remote:
            Path(self._uri(name)).unlink(missing_ok=True)
            return
        fs, path = storage.filesystem(self._uri(name), self._options)
        try:
            fs.rm_file(path)
        except FileNotFoundError:
            return
