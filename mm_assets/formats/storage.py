"""Files on any file system: which inputs a path names, and outputs that appear whole or not at all.

Outputs are always written to a local temporary file. Publishing is one rename (local) or one put (remote), so a crash, a
kill or a full disk leaves the previous version and nothing that looks complete.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import socket
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import fsspec

from mm_assets.formats.absent_paths import absent
from mm_assets.formats.brace_lists import expand_braces
from mm_assets.formats.error_places import located

StorageOptions = dict[str, Any]

# Where `mm-assets convert` lists what it left out, in the output folder. Other names that begin with an underscore are the user's.
LEDGER_BESIDE = "_ledger"

_HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}"
_TEMPORARY = re.compile(r"^\..*\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{12}\.tmp$")
_GLOB = re.compile(r"[*?\[]")

# By name: whoever meets such a URL has imported this module, and only then is the class.
fsspec.register_implementation("paired", "mm_assets.formats.paired.raw.file_system.PairedFileSystem")


def is_remote(uri: str) -> bool:
    """True for a URL of any scheme but ``file``."""
    return "://" in uri and not uri.startswith("file://")


def local_path(uri: str) -> str:
    """The path of a local file given as path or ``file://`` URL."""
    return uri.removeprefix("file://")


def filesystem(uri: str, options: StorageOptions | None = None) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system that a path or URL lives on, and its path there. Raises ``ValueError`` for a scheme that nothing here knows."""
    try:
        fs, path = fsspec.core.url_to_fs(uri, **(options or {}))
    except (ImportError, ValueError) as error:
        raise ValueError(f"{uri}: {error}") from error
    return fs, path


def open_binary(uri: str, options: StorageOptions | None = None) -> IO[bytes]:
    """Open any file for reading."""
    if not is_remote(uri):
        return open(local_path(uri), "rb")
    fs, path = filesystem(uri, options)
    with located(uri):
        return fs.open(path, "rb", block_size=8 << 20)


def size_of(uri: str, options: StorageOptions | None = None) -> int:
    """Size in bytes. Raises ``FileNotFoundError``."""
    if not is_remote(uri):
        return os.stat(local_path(uri)).st_size
    fs, path = filesystem(uri, options)
    with located(uri):
        return int(fs.info(path)["size"])


def join(root: str, *names: str) -> str:
    """Append path parts to a directory or URL."""
    return "/".join([root.rstrip("/"), *names])


def exists(uri: str, options: StorageOptions | None = None) -> bool:
    if not is_remote(uri):
        return os.path.exists(local_path(uri))
    fs, path = filesystem(uri, options)
    fs.invalidate_cache()
    with located(uri):
        return bool(fs.exists(path))


def expand_paths(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    suffixes: tuple[str, ...],
    options: StorageOptions | None = None,
) -> list[str]:
    """The files that a path, folder, glob, brace list or URL (or a list of them) names, each list element in sorted order.

    A folder gives all its files with one of ``suffixes`` (any case), at any depth. Hidden files and folders are left out, and what
    `is_beside` the data. A name that exists is taken literally before it is read as a pattern.
    Raises ``FileNotFoundError`` naming what matches nothing.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[str] = []
    for item in given:
        with located(os.fspath(item)):
            files.extend(_expand_one(os.fspath(item), suffixes, options))
    return list(dict.fromkeys(files))


def _expand_one(item: str, suffixes: tuple[str, ...], options: StorageOptions | None) -> list[str]:
    fs, path = filesystem(item, options)
    if fs.isfile(path):
        return [item]
    if fs.isdir(path):
        found = [name for name in fs.find(path) if name.lower().endswith(suffixes) and not _is_hidden(name, path)]
        if not found:
            raise FileNotFoundError(f"{item}: no {'/'.join(suffixes)} file in this folder")
        return sorted(_restore(item, fs, name) for name in found)
    names: list[str] = []
    for pattern in expand_braces(item) if "{" in item else [item]:
        _, path = filesystem(pattern, options)
        matches = sorted(fs.glob(path)) if _GLOB.search(path) else [path] if fs.isfile(path) else []
        if not matches:
            raise absent(pattern, fs, path)
        names.extend(_restore(item, fs, name) for name in matches)
    return names


def is_beside(folder: str) -> bool:
    """Whether a folder of this name holds no data: a hidden one, or the ledger that lies beside converted data."""
    return folder.startswith(".") or folder == LEDGER_BESIDE


def _is_hidden(name: str, root: str) -> bool:
    *folders, file = name[len(root) :].split("/")
    return file.startswith(".") or any(map(is_beside, folders))


def _restore(item: str, fs: fsspec.AbstractFileSystem, name: str) -> str:
    return fs.unstrip_protocol(name) if is_remote(item) else name


class StagedFile:
    """An output under a temporary local name until `publish` gives it its final one."""

    def __init__(self, uri: str, options: StorageOptions | None = None) -> None:
        self.uri = uri
        self._options = options
        self._scratch: str | None = None
        if is_remote(uri):
            self._scratch = tempfile.mkdtemp(prefix="mm-assets-")
            self.path = os.path.join(self._scratch, os.path.basename(uri))
        else:
            target = local_path(uri)
            folder = os.path.dirname(target) or "."
            os.makedirs(folder, exist_ok=True)
            self.path = os.path.join(folder, temporary_name(os.path.basename(target)))

    def publish(self) -> int:
        """Make the file appear under its final name and return its size in bytes.

        A local file that has the very same bytes already is left as it is.
        """
        size = os.path.getsize(self.path)
        if self.is_published():
            self.discard()
            return size
        sync(self.path)
        if self._scratch is None:
            target = local_path(self.uri)
            os.replace(self.path, target)
            sync(os.path.dirname(target) or ".")
        else:
            fs, path = filesystem(self.uri, self._options)
            with located(self.uri):
                fs.put_file(self.path, path)
            self.discard()
        return size

    def is_published(self) -> bool:
        """Whether the local file of the final name has the same bytes."""
        target = local_path(self.uri)
        if self._scratch is not None or not os.path.isfile(target) or os.path.getsize(target) != os.path.getsize(self.path):
            return False
        return filecmp.cmp(self.path, target, shallow=False)

    def discard(self) -> None:
        """Remove the temporary file; the final name is not touched."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        else:
            Path(self.path).unlink(missing_ok=True)


@contextmanager
def staged(uri: str, options: StorageOptions | None = None) -> Iterator[StagedFile]:
    """A `StagedFile` that is discarded when the block raises; publishing is the caller's word."""
    file = StagedFile(uri, options)
    try:
        with located(os.path.dirname(file.path)):  # of a URL too: a full disk is that of the temporary file
            yield file
    except BaseException:
        file.discard()
        raise


def remove(uri: str, options: StorageOptions | None = None) -> None:
    """Remove a file if it is there."""
    if not is_remote(uri):
        Path(local_path(uri)).unlink(missing_ok=True)
    elif exists(uri, options):
        fs, path = filesystem(uri, options)
        fs.rm_file(path)


def temporary_name(name: str) -> str:
    """A dot-prefixed name no client reads, telling which process made it, so that `sweep` can tell what is stale."""
    short = name.encode()[:120].decode(errors="ignore")  # file systems count bytes
    return f".{short}.{_HOST}-{os.getpid()}-{uuid.uuid4().hex[:12]}.tmp"


def sweep(folder: str) -> list[str]:
    """Remove temporary files that processes of this machine left when they died; those of living ones stay."""
    removed: list[str] = []
    if is_remote(folder) or not os.path.isdir(local_path(folder)):
        return removed
    for entry in os.scandir(local_path(folder)):
        match = _TEMPORARY.match(entry.name)
        if match and match["host"] == _HOST and not _is_alive(int(match["pid"])):
            Path(entry.path).unlink(missing_ok=True)
            removed.append(entry.path)
    return removed


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sync(path: str | os.PathLike[str]) -> None:
    """Have a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
