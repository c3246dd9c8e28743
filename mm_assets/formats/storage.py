"""Files on any file system: inputs to be opened, and outputs that appear whole or not at all.

Outputs are always written to a local temporary file. Publishing is one rename (local) or one put (remote), so
a crash, a kill or a full disk leaves the previous version and nothing that looks complete.
"""

from __future__ import annotations

import errno
import filecmp
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from mm_assets.extras import MissingExtra, explained
from mm_assets.formats.error_places import located
from mm_assets.formats.local_tree import ORIGINS_BESIDE
from mm_assets.formats.temporary_files import claim, is_stale, temporary_name
from mm_assets.interleaved.errors import MmAssetsError

StorageOptions = dict[str, Any]

_LOCAL = re.compile(r"\A(?:file|local):(?://(?:localhost)?(?=/)|//|(?=/))")
_KINDS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))

# By name: whoever meets such a URL has imported this module, and only then is the class.
fsspec.register_implementation("paired", "mm_assets.formats.paired.raw.file_system.PairedFileSystem")


class NoRegularFile(MmAssetsError, ValueError):
    """Under the name of a file lies what may wait for ever, or never end: a named pipe, a socket or a device."""


def is_remote(uri: str) -> bool:
    """True for a URL of any scheme but ``file`` and ``local``."""
    return "://" in uri and not _LOCAL.match(uri)


def local_path(uri: str) -> str:
    """The path of a local file given as path or ``file://`` URL; a URL of another scheme as it is.

    What follows the scheme is a path as it stands: ``%20`` is no space, since files of ours have percent
    signs in their names.
    """
    return _LOCAL.sub("", uri, count=1)


def absolute(location: str) -> str:
    """The absolute path of a local location; a URL of another scheme as it is."""
    return location if is_remote(location) else os.path.abspath(local_path(location))


def filesystem(uri: str, options: StorageOptions | None = None) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system that a path or URL lives on, and its path there.

    Raises ``ValueError`` for a scheme that nothing here knows, `MissingExtra` without its client.
    """
    try:
        fs, path = fsspec.core.url_to_fs(local_path(uri), **(options or {}))
    except ImportError as error:
        raise MissingExtra(f"{uri}: {explained(error)}") from error
    except ValueError as error:
        raise ValueError(f"{uri}: {error}") from error
    return fs, path


def lasting(uri: str, options: StorageOptions | None = None) -> str:
    """The location of an output, without ``file://``.

    Raises ``ValueError`` where it would be lost with this process, or be read stale.
    """
    if not is_remote(uri):
        return local_path(uri)
    if "::" in uri:
        raise ValueError(f"{uri}: an output lies on one file system; name it without the part before '::'")
    fs, _ = filesystem(uri, options)
    while isinstance(inner := getattr(fs, "fs", None), fsspec.AbstractFileSystem):
        fs = inner
    if isinstance(fs, MemoryFileSystem):
        raise ValueError(
            f"{uri}: this lies in the memory of one process and would be lost with it; name a folder, or an object store"
        )
    return uri


def regular_file(uri: str) -> str:
    """The path of a local file; of anything else, which must not be opened, nothing is.

    Raises ``FileNotFoundError``, ``IsADirectoryError`` or `NoRegularFile`.
    """
    path = local_path(uri)
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", path)
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
        raise NoRegularFile(f"{path}: {kind}, not a regular file")
    return path


def open_binary(uri: str, options: StorageOptions | None = None) -> IO[bytes]:
    """Open any file for reading. Raises `NoRegularFile`."""
    if not is_remote(uri):
        return open(regular_file(uri), "rb")
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


class StagedFile:
    """An output under a temporary local name until `publish` gives it its final one."""

    def __init__(self, uri: str, options: StorageOptions | None = None) -> None:
        self.uri = uri
        self._options = options
        self._scratch: str | None = None
        self._claim: int | None = None
        if is_remote(uri):
            self._scratch = tempfile.mkdtemp(prefix="mm-assets-")
            self.path = os.path.join(self._scratch, os.path.basename(uri))
        else:
            target = local_path(uri)
            folder = os.path.dirname(target) or "."
            os.makedirs(folder, exist_ok=True)
            self.path = os.path.join(folder, temporary_name(os.path.basename(target)))
            self._claim = claim(self.path)

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
            self._release()
        else:
            fs, path = filesystem(self.uri, self._options)
            with located(self.uri):
                fs.put_file(self.path, path)
            self.discard()
        return size

    def is_published(self) -> bool:
        """Whether the local file of the final name has the same bytes."""
        target = local_path(self.uri)
        if (
            self._scratch is not None
            or not os.path.isfile(target)
            or os.path.getsize(target) != os.path.getsize(self.path)
        ):
            return False
        return filecmp.cmp(self.path, target, shallow=False)

    def discard(self) -> None:
        """Remove the temporary file; the final name is not touched."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        else:
            Path(self.path).unlink(missing_ok=True)
        self._release()

    def _release(self) -> None:
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None


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


def sweep(folder: str) -> list[str]:
    """Remove temporary files that nobody will come back for; those of living processes stay."""
    removed: list[str] = []
    if is_remote(folder) or not os.path.isdir(local_path(folder)):
        return removed
    for entry in os.scandir(local_path(folder)):
        if is_stale(Path(entry.path)):
            Path(entry.path).unlink(missing_ok=True)
            removed.append(entry.path)
    return removed


def sweep_output(folder: str) -> None:
    """`sweep` a folder of outputs, and what lies beside them."""
    for below in ("", ".mm_assets", ".nv-meta", ORIGINS_BESIDE):
        sweep(os.path.join(folder, below))


def sync(path: str | os.PathLike[str]) -> None:
    """Have a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
