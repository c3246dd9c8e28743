"""Index of the lines of a file, gzipped or not: the byte range of each in the unpacked text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mm_assets.formats.storage import StorageOptions, is_remote, local_path, open_binary, size_of
from mm_assets.formats.tar.header import TarDamage
from mm_assets.formats.tar.index import Member
from mm_assets.formats.tar.spool import local_tar, unpacked_limit

_BLOCK = 1 << 20
_BLANK = 8  # bytes; longer lines are never taken for empty ones, and not read


@dataclass(frozen=True)
class Lines:
    """An open file of lines.

    Args:
        members: its lines, named ``line 1`` and so on, without the empty ones.
        end: bytes of the unpacked text that can be read.
        damage: why the file cannot be read beyond ``end``. The text after the last whole line is no line
            then.
    """

    descriptor: int
    members: list[Member]
    end: int
    damage: TarDamage | None

    @property
    def nbytes(self) -> int:
        """Bytes of the unpacked text."""
        return os.fstat(self.descriptor).st_size


@contextmanager
def local_lines(uri: str, name: str, options: StorageOptions | None) -> Iterator[Lines]:
    """Open a file and index its lines; no line is kept in memory.

    Raises as `mm_assets.formats.storage.open_binary` does.

    Args:
        name: name of the file in errors.
    """
    limit = unpacked_limit(size_of(uri, options))
    damaged: list[TarDamage] = []
    if is_remote(uri):
        with (
            open_binary(uri, options) as file,
            local_tar(file, name, max_bytes=limit, damaged=damaged) as descriptor,
        ):
            yield _lines(descriptor, damaged)
        return
    with local_tar(local_path(uri), name, max_bytes=limit, damaged=damaged) as descriptor:
        yield _lines(descriptor, damaged)


def _lines(descriptor: int, damaged: list[TarDamage]) -> Lines:
    members: list[Member] = []
    number = start = at = 0
    while block := os.pread(descriptor, _BLOCK, at):
        found = block.find(b"\n")
        while found >= 0:
            number += 1
            _add(members, descriptor, number, start, at + found)
            start = at + found + 1
            found = block.find(b"\n", found + 1)
        at += len(block)
    if start < at and not damaged:  # the last line need not be ended
        _add(members, descriptor, number + 1, start, at)
        start = at
    return Lines(descriptor, members, start, damaged[0] if damaged else None)


def _add(members: list[Member], descriptor: int, number: int, start: int, end: int) -> None:
    size = end - start
    if size > _BLANK or os.pread(descriptor, size, start).strip():
        members.append(Member(f"line {number}", start, size, None, start))
