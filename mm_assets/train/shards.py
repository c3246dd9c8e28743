"""Shards of numbered samples: the contract of their sources, and the files that these have open.

* `Source`: the samples of one format. `LruCache`: what a process has opened last.
* `LocalCopies`: copies of remote files, within a bound, shared by all processes of a machine. A copy appears
  as a whole, by a rename. One process downloads a file while others that want it wait. What was used longest
  ago is removed first; who has it open reads on.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from mm_assets.formats.partitions import parse_bytes
from mm_assets.model.errors import DataError
from mm_assets.storage.errors import located
from mm_assets.storage.files import filesystem, is_remote, open_binary, regular_file, sweep
from mm_assets.storage.stamps import mark_of
from mm_assets.storage.temporary import create_locked, temporary_name

_BLOCK = 8 << 20
_SUFFIX = ".copy"
_ATTEMPTS = 5
_OPEN_FILES = 64  # of one process

T = TypeVar("T")
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """A shard: its name, and the number of samples in it."""

    name: str
    samples: int


class Source(ABC):
    """Samples of one format.

    Attributes:
        shards: its shards, in order.
        digest: of all that tells which samples these are; it depends neither on the place nor the machine.
        is_forkable: whether a forked process may read.
    """

    is_forkable = True

    def __init__(self, shards: Sequence[Shard], digest: str) -> None:
        self.shards = list(shards)
        self.digest = digest

    @abstractmethod
    def read(self, shard: int, numbers: Sequence[int]) -> list[Any]:
        """Return samples of a shard, in the order of ``numbers``.

        Raises:
            DataError: what is there is no such sample; the message names file and sample.
        """


Key = TypeVar("Key")
Held = TypeVar("Held")


class LruCache(Generic[Key, Held]):
    """What this process has opened last, within limits.

    A forked process opens anew, since files that both have open share their position. Pickled, it is empty.

    Args:
        open_: opens it.
        most: number that is held.
        most_bytes: bytes that are held, by ``size_of``; the last one is held whatever its size.
    """

    def __init__(
        self,
        open_: Callable[[Key], Held],
        most: int = _OPEN_FILES,
        most_bytes: int = 0,
        size_of: Callable[[Held], int] | None = None,
    ) -> None:
        self._open, self._most, self._most_bytes, self._size_of = open_, most, most_bytes, size_of
        self._held: OrderedDict[Key, Held] = OrderedDict()
        self._pid = os.getpid()

    def get(self, key: Key) -> Held:
        """Return what is held under a key, opened if it is not."""
        if self._pid != os.getpid():
            self._held, self._pid = OrderedDict(), os.getpid()
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        found = self._held[key] = self._open(key)
        while len(self._held) > 1 and (
            len(self._held) > self._most
            or (self._size_of and sum(map(self._size_of, self._held.values())) > self._most_bytes)
        ):
            self._held.popitem(last=False)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": OrderedDict(), "_pid": -1}


class OpenFile:
    """A file that is closed when nobody has it any more."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if (descriptor := vars(self).pop("descriptor", None)) is not None:
            os.close(descriptor)


class LocalCopies:
    """A folder of copies.

    Args:
        folder: None makes one in the folder of temporary files, which all runs of this user share.
        limit: bytes of all copies, as a number or ``"32GiB"``. More are there only while they are read.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int | str = "32GiB") -> None:
        default = os.path.join(tempfile.gettempdir(), f"mm-assets-copies-{os.getuid()}")
        self.folder = Path(folder if folder is not None else default)
        self._is_default = folder is None
        self.limit = parse_bytes(limit)

    def open(self, uri: str, opener: Callable[[str], T]) -> T:
        """Return what ``opener`` gives for a local file of these bytes: the file itself, or its copy.

        Raises:
            DataError: the file alone is larger than the limit, or the common folder is not this user's alone.
            OSError: it cannot be read, or there is no room.
        """
        if not is_remote(uri):
            return opener(regular_file(uri))
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):  # another process has removed it meanwhile
                return opener(self._copy_of(uri))
        raise DataError(f"{uri}: its local copy is removed as soon as it is made: raise the limit of copies")

    def _copy_of(self, uri: str) -> str:
        fs, path = filesystem(uri)
        try:
            with located(uri):
                info = fs.info(path)
        except FileNotFoundError as error:
            raise DataError(f"{uri}: no such file") from error
        size = int(info["size"])
        if size > self.limit:
            raise DataError(f"{uri}: {size} bytes are more than the {self.limit} of the local copies")
        self._make_folder()
        name = xxhash.xxh3_128_hexdigest(f"{uri} {size} {mark_of(info)}".encode())
        copy = self.folder / f"{name}{_SUFFIX}"
        with self._locked(name[:2]):  # few files, whatever the number of copies
            if not copy.exists():
                self._download(uri, copy, size)
            os.utime(copy, ns=(time.time_ns(), time.time_ns()))  # the kernel's own clock has ticks of ms
        return str(copy)

    def _make_folder(self) -> None:
        if not self._is_default:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        with suppress(FileExistsError):  # others may write beside it
            self.folder.mkdir(mode=0o700)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise DataError(
                f"{self.folder}: is no folder that this user alone may use, so others may have put copies "
                "there: remove it, or name another one (cache_dir)"
            )

    def _download(self, uri: str, copy: Path, size: int) -> None:
        temporary = self.folder / temporary_name(copy.name)
        with self._locked("room"):
            self._make_room(size)
            descriptor = create_locked(temporary)
            os.truncate(temporary, size)  # which the next one that makes room counts
        try:
            with located(uri), open_binary(uri) as source, open(temporary, "r+b") as target:
                shutil.copyfileobj(source, target, _BLOCK)
                if target.tell() != size:
                    raise DataError(f"{uri}: {target.tell()} bytes were read, not {size}: it was replaced")
            os.replace(temporary, copy)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def _make_room(self, size: int) -> None:
        """Remove copies, those used longest ago first, until ``size`` bytes more are within the limit."""
        sweep(str(self.folder))
        total, copies = size, []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):
                found = entry.stat()
                total += found.st_size
                if entry.name.endswith(_SUFFIX):
                    copies.append((found.st_mtime_ns, found.st_size, entry.path))
        for _, nbytes, path in sorted(copies):
            if total <= self.limit:
                break
            Path(path).unlink(missing_ok=True)
            total -= nbytes

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with open(self.folder / f"{name}.lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
