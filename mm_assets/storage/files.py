"""Files on any file system, local or remote: opened for reading, and published as a whole or not at all.

Outputs are always written to a local temporary file first. Publishing is one rename (local) or one put
(remote), so a crash, a kill or a full disk leaves the previous version and nothing that looks complete.
`refuse_unwritable` checks an output folder before any work is done for it.

Remote files are read at the store's speed (`ReadAhead`): several requests at once are as fast as the network.
Parts are fetched ahead of a sequential reader. Others get the ranges they ask for.
"""

from __future__ import annotations

import errno
import filecmp
import os
import re
import shutil
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import fsspec
from fsspec.caching import BaseCache, register_cache
from fsspec.implementations.memory import MemoryFileSystem

from mm_assets.model.errors import MissingExtra, MmAssetsError, explained
from mm_assets.storage import S3_SCHEMES, clean_url, fsspec_arguments, opened_url
from mm_assets.storage.errors import is_access_denied, located
from mm_assets.storage.temporary import create_locked, is_stale, is_temporary, temporary_name

ORIGINS_BESIDE = ".origins"  # a folder; hidden, so that no client reads its files as data
PART_BYTES = 8 << 20
_PARTS_AHEAD = 3  # with the one that is being read 32 MiB, with the range given to the caller a little more
_LEAST_BYTES = 1 << 20  # takes a store hardly longer than a few bytes
_RANGES_KEPT = 4
_READ_FROM_END = (".parquet", ".arrow")  # where their footers are


class _Range(NamedTuple):
    start: int
    data: bytes

    def has(self, position: int) -> bool:
        return self.start <= position < self.start + len(self.data)

    def between(self, start: int, stop: int) -> bytes:
        return self.data[start - self.start : stop - self.start]


class ReadAhead(BaseCache):
    """The bytes of one open remote file; fsspec calls it a cache, by the name that `open_binary` gives.

    A reader that has read a little from the start of the file, or the length of a part anywhere, without a
    gap, is sequential: the next parts are requested while it works on one. Other reads get their very range,
    a long one in several parts at once; what follows a small one is kept for the next. One thread reads at a
    time, and a process that was forked off begins anew.
    """

    name: ClassVar[str] = "mm_assets_read_ahead"

    def __init__(
        self, blocksize: int, fetcher: Callable[[int, int], bytes], size: int, known: _Range | None = None
    ) -> None:
        super().__init__(blocksize, fetcher, size)
        self._least = min(_LEAST_BYTES, blocksize)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._threads: ThreadPoolExecutor | None = None
        self._run = self._position = 0  # where reading without a gap began, and where it is
        self._part = _Range(0, b"")  # the one that a sequential reader works on
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()  # the parts behind it, by their start
        self._small: deque[_Range] = deque([] if known is None else [known], maxlen=_RANGES_KEPT)

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        start, stop = start or 0, self.size if stop is None else min(stop, self.size)
        if start >= stop:
            return b""
        with self._lock:
            if os.getpid() != self._pid:  # the threads are the parent's
                self._pid, self._threads = os.getpid(), None
                self._ahead.clear()
            return self._between(start, stop)

    def _between(self, start: int, stop: int) -> bytes:
        if start != self._position:
            self._run = start
        self._position = stop
        is_sequential = stop - self._run > (self._least if self._run == 0 else self.blocksize)
        pieces = []
        while start < stop:
            found = next((known for known in (self._part, *self._small) if known.has(start)), None)
            if found is None:
                found = self._next_part(start) if is_sequential else self._range(start, stop)
            pieces.append(found.between(start, stop))
            start += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """End the threads; requests under way are waited for."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._threads, self._part = None, _Range(0, b"")
        self._ahead.clear()
        self._small.clear()

    def _range(self, start: int, stop: int) -> _Range:
        if stop - start < self._least:
            self._small.append(_Range(start, self._read(start, min(start + self._least, self.size))))
            return self._small[-1]
        parts = [(at, min(at + self.blocksize, stop)) for at in range(start, stop, self.blocksize)]
        if len(parts) == 1:
            return _Range(start, self._read(start, stop))
        return _Range(start, b"".join(self._pool().map(self._read, *zip(*parts, strict=True))))

    def _next_part(self, start: int) -> _Range:
        """Return the part that begins at ``start``, once those behind it are requested, too."""
        self._part = _Range(0, b"")  # not held beside those
        if not self._ahead or self._ahead[0][0] != start:
            self._ahead.clear()
            self._request(start)
        while len(self._ahead) <= _PARTS_AHEAD and (end := self._ahead[-1][0] + self.blocksize) < self.size:
            self._request(end)
        self._part = _Range(start, self._ahead.popleft()[1].result())
        return self._part

    def _request(self, start: int) -> None:
        end = min(start + self.blocksize, self.size)
        self._ahead.append((start, self._pool().submit(self._read, start, end)))

    def _read(self, start: int, stop: int) -> bytes:
        """Return a range from the store.

        Raises:
            OSError: the store gave fewer bytes, or more.
        """
        data = self.fetcher(start, stop)
        if len(data) != stop - start:
            raise OSError(f"the store gave {len(data)} bytes of the {stop - start} from byte {start} on")
        return data

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_PARTS_AHEAD + 1, thread_name_prefix="mm-read-ahead")
        return self._threads


register_cache(ReadAhead, clobber=True)


StorageOptions = dict[str, Any]

_LOCAL = re.compile(r"\A(?:file|local):(?://(?:localhost)?(?=/)|//|(?=/))")
# What `pathlib.Path` makes of a URL.
_ONE_SLASH = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]+:)/(?!/)")
_KINDS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))

_LOGIN = ("headers", "username", "password")  # may have come in the URL
_PARTS_AT_ONCE = 4
_MOST_PARTS = 10_000  # of an upload, by the rules of S3

# Registered by name: the class is imported only when such a URL is opened.
fsspec.register_implementation("paired", "mm_assets.formats.paired.PairedFileSystem")
fsspec.register_implementation("folder", "mm_assets.formats.webdataset.folders.FolderFileSystem")
fsspec.register_implementation("pdf", "mm_assets.formats.pdf.shard.PdfFileSystem")
fsspec.register_implementation("plugin", "mm_assets.formats.document_tars.PluginFileSystem")


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


def is_within(inner: str, outer: str) -> bool:
    """Return whether a location is another one, or lies in it, by any symbolic link or spelling."""
    if is_remote(inner) != is_remote(outer):
        return False
    one, other = (f"{_spelt_alike(location)}/" for location in (inner, outer))
    return one.startswith(other)


def _spelt_alike(location: str) -> str:
    if not is_remote(location):
        return os.path.realpath(local_path(location)).rstrip("/")
    scheme, _, path = clean_url(location).partition("://")
    return "/".join(["s3" if f"{scheme}://" in S3_SCHEMES else scheme, *filter(None, path.split("/"))])


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
    from mm_assets.storage.s3 import S3FileSystem

    arguments = {**S3FileSystem._get_kwargs_from_urls(url), **options}
    return S3FileSystem(**arguments), str(S3FileSystem._strip_protocol(url))


def is_s3(fs: fsspec.AbstractFileSystem) -> bool:
    """Return whether it is an `S3FileSystem`, without importing its client."""
    return isinstance(fs.protocol, tuple) and "s3" in fs.protocol


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
    arguments: dict[str, Any] = {} if "::" in uri else {"cache_type": ReadAhead.name}
    with located(uri):
        if arguments and is_s3(fs):  # a request for the bytes where a reader begins tells the size, too
            is_last = uri.lower().endswith(_READ_FROM_END)
            if (found := fs.read_one_end(path, _LEAST_BYTES, is_last)) is not None:
                details, start, data = found
                arguments |= {"details": details, "cache_options": {"known": _Range(start, data)}}
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
        if self._scratch is None:
            sync(self.path)
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


def read_end(uri: str, nbytes: int) -> bytes | None:
    """Return the last bytes of a file, or all of a shorter one; None if it does not exist."""
    if not is_remote(uri):
        try:
            with open(local_path(uri), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - nbytes))
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
    fs, path = filesystem(uri)
    try:  # Azure has no ranges that count from the end
        return bytes(fs.cat_file(path) if "abfs" in fs.protocol else fs.cat_file(path, start=-nbytes))
    except FileNotFoundError:
        return None
    except OSError:  # S3 refuses a range of an empty file
        return read_bytes(uri)


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
        if is_s3(fs):
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
    if is_remote(folder) or not os.path.isdir(local_path(folder)):
        return []
    removed = []
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


def refuse_unwritable(folder: str) -> None:
    """Raise the error that writing into a folder or URL prefix would end in; the folder need not exist.

    On S3, an upload is begun and given up: nothing appears. Of other stores it only shows that they refuse to
    list.

    Raises:
        OSError: the folder cannot be written. Errors of object store clients pass through.
    """
    if not is_remote(folder):
        _refuse_unwritable_path(os.path.abspath(local_path(folder)))
        return
    fs, path = filesystem(folder)
    with located(folder):
        try:
            fs.ls(path, detail=False)
        except FileNotFoundError:
            pass
        except PermissionError as error:  # who may write need not be allowed to list
            if not is_access_denied(error):
                raise
        begin_upload = getattr(fs, "refuse_unwritable", None)
        if begin_upload is not None:
            begin_upload(path)


@contextmanager
def no_empty_folders(folder: str) -> Iterator[None]:
    """Remove, in the end, a folder that was made in the block, and those above it, if nothing is in it."""
    made = [] if is_remote(folder) else [os.path.abspath(local_path(folder))]
    while made and not os.path.lexists(above := os.path.dirname(made[-1])):
        made.append(above)
    made = [path for path in made if not os.path.lexists(path)]
    try:
        yield
    finally:
        for path in made:
            with suppress(OSError):  # it holds something, or was never made
                os.rmdir(path)


def _refuse_unwritable_path(path: str) -> None:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if not os.access(path, os.W_OK | os.X_OK):
        number = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(number, os.strerror(number), path)
