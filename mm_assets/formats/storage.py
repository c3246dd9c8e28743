"""Files on any file system: inputs to open, and outputs that appear as a whole or not at all.

Outputs are always written to a local temporary file first. Publishing is one rename (local) or one put
(remote), so a crash, a kill or a full disk leaves the previous version and nothing that looks complete.
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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from mm_assets.formats.error_places import located
from mm_assets.formats.local_tree import ORIGINS_BESIDE
from mm_assets.formats.read_ahead import PART_BYTES, ReadAhead
from mm_assets.formats.stores import S3_SCHEMES, clean_url, fsspec_arguments, opened_url
from mm_assets.formats.temporary_files import create_locked, is_stale, is_temporary, temporary_name
from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.interleaved.extras import MissingExtra, explained

StorageOptions = dict[str, Any]

_LOCAL = re.compile(r"\A(?:file|local):(?://(?:localhost)?(?=/)|//|(?=/))")
# What `pathlib.Path` makes of a URL.
_ONE_SLASH = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]+:)/(?!/)")
_KINDS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))

_LOGIN = ("headers", "username", "password")  # may have come in the URL
_PARTS_AT_ONCE = 4
_MOST_PARTS = 10_000  # of an upload, by the rules of S3

# Registered by name: the class is imported only when such a URL is opened.
fsspec.register_implementation("paired", "mm_assets.formats.paired.raw.file_system.PairedFileSystem")
fsspec.register_implementation("pdf", "mm_assets.formats.pdf.file_system.PdfFileSystem")


class NoRegularFile(MmAssetsError, ValueError):
    """A named pipe, socket or device under a file's name: reading it may block or never end."""


def is_remote(uri: str) -> bool:
    """Return True for a URL of any scheme but ``file`` and ``local``."""
    return "://" in uri and not _LOCAL.match(uri)


def local_path(uri: str) -> str:
    """Return the path of a local file given as path or ``file://`` URL; other URLs unchanged.

    The part after the scheme is taken literally: ``%20`` is no space, since our files have percent signs in
    their names.
    """
    return _LOCAL.sub("", uri, count=1)


def absolute(location: str) -> str:
    """Return the absolute path of a local location; a URL of another scheme unchanged."""
    return location if is_remote(location) else os.path.abspath(local_path(location))


def filesystem(uri: str, options: StorageOptions | None = None) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a path or URL, and its path there.

    Without ``options``, those of the URL's location count, if there are any (`stores`).

    Raises:
        ValueError: the URL's scheme is unknown, or it holds a key where a bucket should be.
        MissingExtra: its client is not installed.
    """
    uri = clean_url(uri)
    try:
        if uri.startswith(S3_SCHEMES):
            return _s3(uri, options or fsspec_arguments(uri))
        fs, path = fsspec.core.url_to_fs(local_path(opened_url(uri)), **_arguments(uri, options))
    except ImportError as error:
        raise MissingExtra(f"{uri}: {explained(error)}") from error
    except ValueError as error:
        raise ValueError(f"{uri}: {error}") from error
    return fs, path


def _arguments(uri: str, options: StorageOptions | None) -> StorageOptions:
    """Return arguments for fsspec, which wants those of a file within a file by scheme."""
    inner = uri.rpartition("::")[2]
    of_place = fsspec_arguments(inner)
    if inner != uri:
        return options or ({inner.partition("://")[0]: of_place} if of_place else {})
    login = {name: of_place[name] for name in _LOGIN if name in of_place}
    return {**login, **options} if options else of_place


def _s3(url: str, options: StorageOptions) -> tuple[fsspec.AbstractFileSystem, str]:
    from mm_assets.formats.s3_file_system import S3FileSystem

    arguments = {**S3FileSystem._get_kwargs_from_urls(url), **options}
    return S3FileSystem(**arguments), str(S3FileSystem._strip_protocol(url))


def whole_url(location: str) -> str:
    """Return a location as it is.

    Raises:
        ValueError: it is a URL that has lost a slash, which would be a local folder called ``s3:``.
    """
    found = None if _LOCAL.match(location) else _ONE_SLASH.match(location)
    if found is not None and not os.path.isdir(found[1]):
        url = _ONE_SLASH.sub(r"\1//", location)
        raise ValueError(f"{location}: is {url} meant? A Path takes a slash away: give URLs as text")
    return location


def lasting(uri: str, options: StorageOptions | None = None) -> str:
    """Return the location of an output, without ``file://``.

    Raises:
        ValueError: the output would be lost with this process, be read from a stale copy, or lie in a folder
            that is called like the scheme of a URL.
    """
    if not is_remote(uri):
        return local_path(whole_url(uri))
    uri = clean_url(uri)
    if "::" in uri:
        raise ValueError(f"{uri}: an output lies on one file system; name it without the part before '::'")
    fs, _ = filesystem(uri, options)
    while isinstance(inner := getattr(fs, "fs", None), fsspec.AbstractFileSystem):
        fs = inner
    if isinstance(fs, MemoryFileSystem):
        raise ValueError(
            f"{uri}: this lies in the memory of one process and would be lost with it; "
            "name a folder, or an object store"
        )
    return uri


def regular_file(uri: str) -> str:
    """Return the path of a local regular file, without opening it.

    Raises:
        FileNotFoundError: nothing is there.
        IsADirectoryError: it is a folder.
        NoRegularFile: it is a pipe, a socket or a device.
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
    """Open any file for reading, a remote one with `ReadAhead`.

    Raises:
        NoRegularFile: it is a pipe, a socket or a device.
    """
    if not is_remote(uri):
        return open(regular_file(uri), "rb")
    fs, path = filesystem(uri, options)
    # Files within files have caches of their own.
    arguments = {} if "::" in uri else {"cache_type": ReadAhead.name}
    with located(uri):
        return fs.open(path, "rb", block_size=PART_BYTES, **arguments)


def size_of(uri: str, options: StorageOptions | None = None) -> int:
    """Return the size in bytes.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    if not is_remote(uri):
        return os.stat(local_path(uri)).st_size
    fs, path = filesystem(uri, options)
    with located(uri):
        return int(fs.info(path)["size"])


def join(root: str, *names: str) -> str:
    """Append path parts to a folder or URL."""
    return "/".join([root.rstrip("/"), *names])


def exists(uri: str, options: StorageOptions | None = None) -> bool:
    """Return whether a file or folder exists, without cached listings."""
    if not is_remote(uri):
        return os.path.exists(local_path(uri))
    fs, path = filesystem(uri, options)
    fs.invalidate_cache()
    with located(uri):
        return bool(fs.exists(path))


class StagedFile:
    """An output file under a temporary local name, until `publish` gives it its final name."""

    def __init__(self, uri: str, options: StorageOptions | None = None) -> None:
        self.uri = uri
        self._options = options
        self._scratch: str | None = None
        self._lock: int | None = None
        if is_remote(uri):
            self._scratch = tempfile.mkdtemp(prefix="mm-assets-")
            self.path = os.path.join(self._scratch, os.path.basename(uri))
        else:
            target = local_path(uri)
            folder = os.path.dirname(target) or "."
            os.makedirs(folder, exist_ok=True)
            self.path = os.path.join(folder, temporary_name(os.path.basename(target)))
            self._lock = create_locked(self.path)

    def publish(self) -> int:
        """Make the file appear under its final name and return its size in bytes.

        A local file that already has the same bytes is left untouched.
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
            put(self.path, self.uri, self._options)
            self.discard()
        return size

    def is_published(self) -> bool:
        """Return whether the local file of the final name has the same bytes."""
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
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def staged(uri: str, options: StorageOptions | None = None) -> Iterator[StagedFile]:
    """Open a `StagedFile` that is discarded when the block raises; the caller publishes it."""
    file = StagedFile(uri, options)
    try:
        with located(os.path.dirname(file.path)):  # for URLs too: a full disk is that of the temporary file
            yield file
    except BaseException:
        file.discard()
        raise


def local_bytes(path: str) -> bytes | None:
    """Return the content of a local file; None if it does not exist."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def replace_file(path: str, data: bytes) -> None:
    """Give a local file this content in one step: readers see the old one or the new one.

    Not synced to disk, for files that are made again when a power cut leaves them empty.
    """
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = Path(folder, temporary_name(name))
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_bytes(uri: str, options: StorageOptions | None = None) -> bytes | None:
    """Return the content of a file; None if it does not exist."""
    if not is_remote(uri):
        return local_bytes(local_path(uri))
    fs, path = filesystem(uri, options)
    try:
        return bytes(fs.cat_file(path))
    except FileNotFoundError:
        return None


def publish_bytes(uri: str, data: bytes, options: StorageOptions | None = None) -> None:
    """Give a file this content in one step, as `replace_file`."""
    if not is_remote(uri):
        replace_file(local_path(uri), data)
        return
    with staged(uri, options) as file:
        Path(file.path).write_bytes(data)
        file.publish()


def put(file: str, uri: str, options: StorageOptions | None = None) -> None:
    """Copy a local file to a URL, where it appears as a whole; a large one in several parts at once."""
    fs, path = filesystem(uri, options)
    with located(uri):
        if isinstance(fs.protocol, tuple) and "s3" in fs.protocol:
            # By default s3fs holds up to ten parts of 50 MB in memory.
            part = max(PART_BYTES, -(-os.path.getsize(file) // _MOST_PARTS))
            fs.put_file(file, path, chunksize=part, max_concurrency=_PARTS_AT_ONCE)
        else:
            fs.put_file(file, path)


def remove(uri: str, options: StorageOptions | None = None) -> None:
    """Remove a file if it exists."""
    if not is_remote(uri):
        Path(local_path(uri)).unlink(missing_ok=True)
    elif exists(uri, options):
        fs, path = filesystem(uri, options)
        with suppress(FileNotFoundError):  # another process was faster
            fs.rm_file(path)


def sweep(folder: str) -> list[str]:
    """Remove temporary files of dead processes, and return their paths; those of living processes stay."""
    removed: list[str] = []
    if is_remote(folder) or not os.path.isdir(local_path(folder)):
        return removed
    # Each run lists all names of some seventy folders: only hidden ones are looked at any further.
    hidden = [name for name in os.listdir(local_path(folder)) if name[:1] == "."]
    for path in [os.path.join(local_path(folder), name) for name in hidden if is_temporary(name)]:
        if is_stale(Path(path)):
            Path(path).unlink(missing_ok=True)
            removed.append(path)
    return removed


def sweep_output(folder: str) -> None:
    """Run `sweep` on a folder of outputs and on the folders of metadata inside it."""
    for below in ("", ".mm_assets", ".nv-meta", ORIGINS_BESIDE):
        sweep(os.path.join(folder, below))


def sync(path: str | os.PathLike[str]) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
