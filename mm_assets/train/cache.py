"""Local copies of remote files, within a bound, shared by all processes of a machine.

A copy appears as a whole, by a rename. One process downloads a file while others that want it wait. What was
used longest ago is removed first; who has it open reads on.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

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

T = TypeVar("T")


class LocalCopies:
    """A folder of copies.

    Args:
        folder: None makes one in the folder of temporary files, which all runs of this user share.
        limit: bytes of all copies, as a number or ``"32GiB"``. More are there only while they are read.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int | str = "32GiB") -> None:
        default = os.path.join(tempfile.gettempdir(), f"mm-assets-copies-{os.getuid()}")
        self.folder = Path(folder if folder is not None else default)
        self.limit = parse_bytes(limit)

    def open(self, uri: str, opener: Callable[[str], T]) -> T:
        """Return what ``opener`` gives for a local file of these bytes: the file itself, or its copy.

        Raises:
            DataError: the file alone is larger than the limit.
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
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = xxhash.xxh3_128_hexdigest(f"{uri} {size} {mark_of(info)}".encode())
        copy = self.folder / f"{name}{_SUFFIX}"
        with self._locked(name[:2]):  # few files, whatever the number of copies
            if not copy.exists():
                self._download(uri, copy, size)
            os.utime(copy, ns=(time.time_ns(), time.time_ns()))  # the kernel's own clock has ticks of ms
        return str(copy)

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
