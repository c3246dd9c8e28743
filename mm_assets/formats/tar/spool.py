"""Local copies of tars: a descriptor of the uncompressed bytes, also of remote, streamed or gzipped ones.

`Download` is the copy of a remote file that is read more than once: for ids and types first, then whole. The
processes of a worker pool share them, in the pool's own folder of temporary files.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import xxhash

from mm_assets.formats.names import is_system_file, is_zip
from mm_assets.formats.tar import END_BLOCKS, TarDamage, add_member, damage
from mm_assets.storage.errors import located, temporary_place
from mm_assets.storage.files import (
    StorageOptions,
    is_remote,
    local_path,
    open_binary,
    regular_file,
    size_of,
)

_BLOCK = 1 << 20  # bytes of the input, and of the output, in memory at any time
_INFLATE_STEP = 1 << 16  # fed to zlib at a time; at the end of each gzip member it copies the rest
_LEAST_LIMIT = 64 << 20
_LARGEST_RATIO = 300
_WHY_LIMITED = (
    f"{_LARGEST_RATIO} times its size and {_LEAST_LIMIT >> 20} MiB: "
    "unpack it yourself (gunzip) if you trust it"
)
_GZIP = b"\x1f\x8b\x08"
_ZIPS = (b"PK\3\4", b"PK\5\6")  # what one begins with; the second has no files
_ZIP_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error)
_END_OF_ZIP = (1 << 16) + 200  # bytes in which its end record is
_MAX_DIRECTORY = 64 << 20  # bytes of the list of files of a zip; Python takes ten times as many for it
# zlib's number for "32 KiB window, gzip header and trailer required": CRC and length are checked.
_GZIP_WINDOW = 31


def unpacked_limit(size: int) -> int:
    """Return the number of bytes that a file of ``size`` bytes may unpack to.

    Images hardly compress; deflate reaches 1,030:1 on nothing but zeros.
    """
    return _LEAST_LIMIT + _LARGEST_RATIO * size


@contextmanager
def open_tar(
    uri: str, name: str, options: StorageOptions | None = None, damaged: list[TarDamage] | None = None
) -> Iterator[int]:
    """Open a tar at a path or URL as `local_tar`; it may unpack to its `unpacked_limit`.

    Raises:
        OSError: It cannot be opened.
    """
    limit = unpacked_limit(size_of(uri, options))
    source = open_binary(uri, options) if is_remote(uri) else nullcontext(local_path(uri))
    with source as file, local_tar(file, name, max_bytes=limit, damaged=damaged) as descriptor:
        yield descriptor


@contextmanager
def local_tar(
    source: str | os.PathLike[str] | IO[bytes],
    name: str,
    *,
    max_bytes: int | None = None,
    damaged: list[TarDamage] | None = None,
) -> Iterator[int]:
    """Open a read-only descriptor of an uncompressed tar, closed at the end of the block.

    A plain local file is used as it is. A stream or a gzip file (several gzip members in a row too) is
    spooled into an unlinked temporary file. A zip (by its name, too) becomes a tar of the same files, without
    hidden ones and those that systems have added; none of its names becomes a place on the disk.

    Args:
        source: A local path, or a binary file object (a remote tar), which is read from its current position
            to its end and left open.
        name: Name of the tar in errors.
        max_bytes: Limit of the temporary file.
        damaged: A list that receives the error instead of raising it. The descriptor then has all bytes that
            can still be trusted: everything up to a cut; else the gzip members before the one whose checksum
            fails; nothing of a file that is too large.

    Raises:
        NoRegularFile: The path is anything but a regular file.
        TarDamage: The gzip data is cut or corrupt, anything but zeros follows its last member, it unpacks to
            more than ``max_bytes``, or files of a zip cannot be read (``damaged`` has all others).
    """
    with _unpacked(source, name, max_bytes, damaged) as fd:
        if not is_zip(name) or os.pread(fd, len(_ZIPS[0]), 0) not in _ZIPS:
            yield fd
            return
        with tempfile.TemporaryFile(prefix="mm-assets-") as tar:
            with located(temporary_place()):
                problem = _tar_of_zip(fd, name, tar, max_bytes)
                tar.flush()
            if problem is not None and damaged is None:
                raise problem
            if problem is not None and damaged is not None:
                damaged.append(problem)
            yield tar.fileno()


@contextmanager
def _unpacked(
    source: str | os.PathLike[str] | IO[bytes],
    name: str,
    max_bytes: int | None,
    damaged: list[TarDamage] | None,
) -> Iterator[int]:
    """Open a descriptor of a tar or zip, as `local_tar`."""
    if not isinstance(source, str | os.PathLike):
        if (descriptor := plain_descriptor(source)) is not None:
            yield descriptor
            return
        with _spooled(source, name, max_bytes, damaged) as fd:
            yield fd
        return
    with open(regular_file(os.fspath(source)), "rb", buffering=0) as file:
        fd = file.fileno()
        if os.pread(fd, len(_GZIP), 0) != _GZIP:
            yield fd
        else:
            with _spooled(file, name, max_bytes, damaged) as spooled:
                yield spooled


def _tar_of_zip(fd: int, name: str, tar: IO[bytes], max_bytes: int | None) -> TarDamage | None:
    """Write the files of a zip as a tar; return what is wrong with those that cannot be read."""
    refused: list[str] = []
    with os.fdopen(os.dup(fd), "rb") as file:
        try:
            _refuse_long_directory(file)
            with zipfile.ZipFile(file) as packed:
                entries = [entry for entry in packed.infolist() if not _is_left_out(entry)]
                total = sum(entry.file_size for entry in entries)
                if max_bytes is not None and total > max_bytes:
                    raise ValueError(f"unpacks to {total} bytes, more than {max_bytes}, {_WHY_LIMITED}")
                for entry in entries:
                    if (reason := _added(tar, packed, entry)) is not None:
                        refused.append(f"{entry.filename} {reason}")
        except (*_ZIP_DAMAGE, ValueError) as error:
            refused = [str(error) if isinstance(error, ValueError) else f"no whole zip: {error}"]
    tar.write(bytes(END_BLOCKS))
    if not refused:
        return None
    first = refused[0] if len(refused) == 1 else f"{len(refused)} files cannot be read: {refused[0]}, …"
    return TarDamage(f"{name}: {first}", 0)


def _refuse_long_directory(file: IO[bytes]) -> None:
    """Refuse a zip with a list of files that would take far more memory than a shard may."""
    start = max(file.seek(0, os.SEEK_END) - _END_OF_ZIP, 0)
    file.seek(start)
    tail = file.read()
    at, at64 = tail.rfind(b"PK\5\6"), tail.rfind(b"PK\6\6")
    size = int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0
    size64 = int.from_bytes(tail[at64 + 40 : at64 + 48], "little") if at64 >= 0 else 0
    if (size := max(size64, size if size < 0xFFFFFFFF else 0)) > _MAX_DIRECTORY:
        raise ValueError(f"its list of files has {size} bytes, at most {_MAX_DIRECTORY}")


def _is_left_out(entry: zipfile.ZipInfo) -> bool:
    return entry.is_dir() or is_system_file(entry.filename)


def _added(tar: IO[bytes], packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str | None:
    """Append a file of a zip to a tar; return why that cannot be done."""
    if entry.flag_bits & 1:
        return "is encrypted"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {entry.compress_type}, which is not read"
    start = tar.tell()
    try:
        with packed.open(entry) as payload:
            add_member(tar, entry.filename, entry.file_size, payload)
            payload.read(1)  # the checksum is looked at with the end
    except (*_ZIP_DAMAGE, ValueError) as error:
        tar.seek(start)
        tar.truncate()
        return f"is damaged: {error}"
    return None


def is_packed(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is unpacked before it is read."""
    return head.startswith((_GZIP, *_ZIPS))


def plain_descriptor(stream: IO[bytes]) -> int | None:
    """Return the descriptor of a stream that can be read in place, else None.

    That is a local file, uncompressed, and positioned at its start.
    """
    try:
        descriptor = stream.fileno()
        is_plain = (
            stat.S_ISREG(os.fstat(descriptor).st_mode)
            and stream.tell() == 0
            and os.pread(descriptor, len(_GZIP), 0) != _GZIP
        )
    except (AttributeError, OSError):  # io.UnsupportedOperation is one
        return None
    return descriptor if is_plain else None


@contextmanager
def _spooled(
    stream: IO[bytes], name: str, max_bytes: int | None, damaged: list[TarDamage] | None
) -> Iterator[int]:
    with tempfile.TemporaryFile(buffering=0, prefix="mm-assets-") as file:
        total = checked = 0
        try:
            for block in _plain_blocks(stream, name):
                if not block:
                    checked = total
                total += len(block)
                if max_bytes is not None and total > max_bytes:
                    checked = 0
                    raise TarDamage(
                        f"{name}: unpacks to more than {max_bytes} bytes, {_WHY_LIMITED}", max_bytes
                    )
                view = memoryview(block)
                with located(temporary_place()):
                    while view:
                        view = view[file.write(view) :]
        except TarDamage as error:
            if damaged is None:
                raise
            damaged.append(error.with_traceback(None))
            file.truncate(total if error.is_cut else checked)
        yield file.fileno()


def _plain_blocks(stream: IO[bytes], name: str) -> Iterator[bytes]:
    head = b""
    while len(head) < len(_GZIP) and (block := stream.read(_BLOCK)):
        head += block
    blocks = _chain(head, stream)
    return _inflate(blocks, name) if head.startswith(_GZIP) else blocks


def _chain(head: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    while block := stream.read(_BLOCK):
        yield block


def _inflate(blocks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Yield unpacked blocks; an empty one says that everything before it has passed its checksum."""
    inflator: zlib._Decompress | None = None  # None between gzip members
    is_new = False
    read = 0
    for block in blocks:
        for at in range(0, len(block), _INFLATE_STEP):
            data = block[at : at + _INFLATE_STEP]
            while data:
                if inflator is None:
                    data = data.lstrip(b"\0")  # gzip allows zeros after a member (tape blocks)
                    if not data:
                        break
                    inflator, is_new = zlib.decompressobj(_GZIP_WINDOW), True
                try:
                    plain = inflator.decompress(data, _BLOCK)
                except zlib.error as error:
                    side = "from" if is_new else "near"
                    reason = f"corrupt gzip, or none, {side} this byte of the compressed file: {error}"
                    end = read + min(at + _INFLATE_STEP, len(block))
                    raise damage(name, end - len(data) if is_new else read + at, reason) from error
                is_new = False
                if plain:
                    yield plain
                if inflator.eof:
                    data, inflator = inflator.unused_data, None
                    yield b""
                else:
                    data = inflator.unconsumed_tail
        read += len(block)
    if inflator is not None:
        raise damage(name, read, "the gzip stream is cut here", is_cut=True)


_BLOCK = 1 << 20
_SHARE_OF_FREE = 4  # copies take a quarter of what is free on the disk
# What changes whenever an object's content does. A time of change may be too coarse for that.
_CONTENT_MARKS = ("ETag", "etag")


@dataclass(frozen=True)
class KeptCopies:
    """Where copies are kept, and how many bytes of them together; what exceeds that is fetched again."""

    folder: str
    max_bytes: int

    @classmethod
    def beside(cls, folder: str) -> KeptCopies:
        """Make a folder for copies in a folder of temporary files."""
        copies = os.path.join(folder, "copies")
        os.makedirs(copies, mode=0o700)
        return cls(copies, shutil.disk_usage(copies).free // _SHARE_OF_FREE)

    def has_room(self) -> bool:
        """Return whether the copies, with those that are being made, are not too large together."""
        used = 0
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed by another worker
                    used += entry.stat().st_size
        return used <= self.max_bytes


_kept: KeptCopies | None = None


def keep_copies(kept: KeptCopies | None) -> None:
    """Keep copies from now on in this process, or keep none."""
    global _kept
    _kept = kept


def shared_folder() -> str | None:
    """Return the folder that the processes of a pool share, which the pool removes; None outside of one."""
    return None if _kept is None else _kept.folder


class Download:
    """An open remote file, or the copy of it that an earlier pass has kept; ``file`` is at its start.

    A copy is made where `keep_copies` was called, and kept if there is room.

    Raises:
        OSError: it cannot be opened or read.
    """

    def __init__(self, uri: str, options: StorageOptions | None = None) -> None:
        self.file: IO[bytes] = open_binary(uri, options)
        known = getattr(self.file, "size", None)
        self.size: int = known if isinstance(known, int) else size_of(uri, options)  # in bytes
        self._copy: Path | None = None
        mark = _mark_of(self.file)
        if _kept is None or mark is None:
            return
        self._copy = Path(_kept.folder, xxhash.xxh3_128_hexdigest(f"{uri}\n{mark}".encode()))
        with self.file as remote:
            self.file = self._opened_copy() or self._fetched(remote, _kept)

    def forget(self) -> None:
        """Remove the copy, once the file has been read whole."""
        if self._copy is not None:
            self._copy.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; a kept copy stays."""
        self.file.close()

    def _opened_copy(self) -> IO[bytes] | None:
        assert self._copy is not None
        try:
            return open(self._copy, "rb", buffering=0)
        except FileNotFoundError:
            return None

    def _fetched(self, remote: Any, kept: KeptCopies) -> IO[bytes]:
        assert self._copy is not None
        with located(temporary_place()):
            descriptor, name = tempfile.mkstemp(dir=kept.folder)
        file = os.fdopen(descriptor, "w+b", buffering=0)
        try:
            while block := remote.read(_BLOCK):
                view = memoryview(block)
                with located(temporary_place()):
                    while view:
                        view = view[file.write(view) :]
            if kept.has_room():
                os.replace(name, self._copy)
            else:
                os.unlink(name)
        except BaseException:
            file.close()
            Path(name).unlink(missing_ok=True)
            raise
        file.seek(0)
        return file


def _mark_of(file: IO[bytes]) -> str | None:
    """Return what tells the content of an open remote file from others; None if the store does not say."""
    details = getattr(file, "details", None)
    if not isinstance(details, dict):
        return None
    mark = next((details[name] for name in _CONTENT_MARKS if details.get(name)), None)
    return None if mark is None else f"{mark}\n{details.get('size')}"
