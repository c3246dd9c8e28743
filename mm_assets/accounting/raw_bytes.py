"""Bytes of raw shards at places that the data names: bounded, from the files of the shard only, and only
where they still lie.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from mm_assets.formats.fetching import Request, open_fetcher
from mm_assets.formats.paired.raw.address import parts_of
from mm_assets.formats.parquet_row_json import rows_as_json
from mm_assets.formats.parquet_rows import row_of
from mm_assets.formats.raw_files import is_parquet
from mm_assets.formats.storage import StorageOptions, open_binary, size_of
from mm_assets.formats.tar.header import BLOCK, TarDamage, check_header, member_size
from mm_assets.formats.tar.spool import local_tar, unpacked_limit
from mm_assets.interleaved.faults import FETCH_FAILED, Fault

Item = TypeVar("Item")

MAX_PLACE_BYTES = 16 << 20
MAX_SHARD_BYTES = 128 << 20  # they are held in memory, by a worker that may take 256 MiB in all
MAX_DAMAGED_RANGE_BYTES = 1 << 20  # of a damaged range: enough to see what it is
BATCH_BYTES = 16 << 20

Fetch = Callable[[Sequence[Request]], list[bytes | Fault]]

_UNPACKABLE = "the gzip file is damaged before these bytes"
_CHANGED = "the source has changed: no member of this size lies there any more"
_NO_ROW = "the source has changed: it has no such row any more"


@dataclass(frozen=True)
class RawLocation:
    """``size`` bytes at ``offset`` of the (unpacked) file that locators call ``source``; of a damaged range
    only the first are wanted.

    ``size`` None is up to the end of the file. Where ``is_member``, the tar header before them must tell the
    same size. ``row`` is the number of one of a Parquet file, whose values are wanted as JSON: it has no
    place in bytes.
    """

    source: str | None
    offset: int
    size: int | None
    is_member: bool = True
    is_damaged_range: bool = False
    row: int | None = None


class RawFiles:
    """The files of one raw shard, under every name that a locator may have for them: their own, or the path
    below a root.
    """

    def __init__(
        self, files: Sequence[str], roots: Sequence[str], options: StorageOptions | None = None
    ) -> None:
        self._options = options
        self._by_name = {file: file for file in files}
        for root in (root.rstrip("/") + "/" for root in roots):
            self._by_name.update({file.removeprefix(root): file for file in files if file.startswith(root)})
        self.only_name = min(self._by_name, key=len) if len(files) == 1 else None
        for file in files:
            self._by_name.update(parts_of(file))

    def row_place(self, source: str | None, member: str | None) -> RawLocation | None:
        """The row that a locator names, if it is one of a Parquet file of the shard."""
        row = row_of(member)
        is_there = is_parquet(self._by_name.get(source or "", "")) and row is not None
        return RawLocation(source, 0, None, is_member=False, row=row) if is_there else None

    def read(self, places: Sequence[RawLocation | None]) -> list[memoryview | str | None]:
        """The bytes at each place, or why they cannot be had; None for None.

        Takes at most `MAX_PLACE_BYTES` of a place and `MAX_SHARD_BYTES` in all: what is larger, or comes
        later, is refused.
        """
        found: list[memoryview | str | None] = [None] * len(places)
        by_file: dict[str, list[tuple[int, RawLocation]]] = defaultdict(list)
        held = self._read_rows(places, found)
        for index, place in enumerate(places):
            if place is None or place.row is not None:
                continue
            bounded = self._bounded(place)
            if isinstance(bounded, str):
                found[index] = bounded
            elif why := _refused(size := bounded.size or 0, held):
                found[index] = why
            elif size == 0:
                found[index] = memoryview(b"")
            else:
                held += size
                by_file[str(place.source)].append((index, bounded))
        for source, wanted in by_file.items():
            self._read_file(source, wanted, found)
        return found

    def _read_rows(self, places: Sequence[RawLocation | None], found: list[memoryview | str | None]) -> int:
        """Reads the rows among the places, and returns how many bytes they take."""
        by_file: dict[str, dict[int, int]] = defaultdict(dict)
        for index, place in enumerate(places):
            if place is not None and place.row is not None:
                by_file[str(place.source)][index] = place.row
        held = 0
        for source, rows in by_file.items():
            file = self._by_name[source]
            try:
                values = rows_as_json(file, set(rows.values()), self._options)
            except Exception as error:  # noqa: BLE001  (file systems raise what they like; a quarantine without bytes is still one)
                found[:] = [
                    self._told(error, file, source) if index in rows else known
                    for index, known in enumerate(found)
                ]
                continue
            for index, row in rows.items():
                size = len(values.get(row, b""))
                found[index] = (
                    _NO_ROW if row not in values else _refused(size, held) or memoryview(values[row])
                )
                held += 0 if isinstance(found[index], str) else size
        return held

    def _bounded(self, place: RawLocation) -> RawLocation | str:
        """The place with a size that may be read."""
        file = self._by_name.get(place.source or "")
        if file is None:
            return "not in a file of this shard"
        size = place.size
        if size is None:
            try:
                size = size_of(file, self._options) - place.offset
            except OSError as error:
                return self._told(error, file, str(place.source))
        if place.is_damaged_range:
            size = min(size, MAX_DAMAGED_RANGE_BYTES)
            if size <= 0:
                return "nothing follows: the file ends here"
        if place.is_member and place.offset < BLOCK:
            return _CHANGED
        return RawLocation(place.source, place.offset, size, place.is_member, place.is_damaged_range)

    def _read_file(
        self, source: str, wanted: Sequence[tuple[int, RawLocation]], found: list[memoryview | str | None]
    ) -> None:
        file = self._by_name[source]
        try:
            try:
                with open_fetcher(file, source, self._options) as fetcher:
                    _fill(fetcher.fetch, wanted, found)
            except TarDamage:
                with _salvaged(file, source, self._options) as fetch:
                    _fill(fetch, wanted, found)
        except Exception as error:  # noqa: BLE001  (file systems raise what they like; a quarantine without bytes is still one)
            for index, _ in wanted:
                if found[index] is None:
                    found[index] = self._told(error, file, source)

    def _told(self, error: Exception, file: str, source: str) -> str:
        """Under the name that the data has for the file: the path on this machine is not published."""
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error).replace(file, source)
        return f"cannot be read: {reason}"


def _refused(size: int, held: int) -> str | None:
    """Why bytes are not kept when ``held`` are already; None when they are."""
    if size > MAX_PLACE_BYTES:
        return f"{size} bytes are more than the {MAX_PLACE_BYTES} that are kept of one item"
    if held + size > MAX_SHARD_BYTES:
        return f"{size} bytes are more than are left of the {MAX_SHARD_BYTES} that are kept of a shard"
    return None


def in_batches(items: Sequence[Item], size_of_item: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Neighbours of at most `BATCH_BYTES` together; a larger one goes alone."""
    batch: list[Item] = []
    filled = 0
    for item in items:
        size = size_of_item(item)
        if batch and filled + size > BATCH_BYTES:
            yield batch
            batch, filled = [], 0
        batch.append(item)
        filled += size
    if batch:
        yield batch


def _fill(
    fetch: Fetch, wanted: Sequence[tuple[int, RawLocation]], found: list[memoryview | str | None]
) -> None:
    for batch in in_batches(wanted, lambda item: item[1].size or 0):
        before = [BLOCK if place.is_member else 0 for _, place in batch]
        requests = [
            (None, p.offset - skip, (p.size or 0) + skip) for (_, p), skip in zip(batch, before, strict=True)
        ]
        for (index, place), result in zip(batch, fetch(requests), strict=True):
            found[index] = (
                result.message if isinstance(result, Fault) else _payload(memoryview(result), place.is_member)
            )


@contextmanager
def _salvaged(file: str, name: str, options: StorageOptions | None) -> Iterator[Fetch]:
    """What reads ranges of a damaged gzip file, those before the damage."""

    def fetch(requests: Sequence[Request]) -> list[bytes | Fault]:
        ranges = [(offset or 0, size or 0) for _, offset, size in requests]
        results = [(os.pread(descriptor, size, offset), size) for offset, size in ranges]
        return [data if len(data) == size else Fault(FETCH_FAILED, _UNPACKABLE) for data, size in results]

    limit = unpacked_limit(size_of(file, options))
    with (
        open_binary(file, options) as stream,
        local_tar(stream, name, max_bytes=limit, damaged=[]) as descriptor,
    ):
        yield fetch


def _payload(data: memoryview, is_member: bool) -> memoryview | str:
    """The bytes after a tar header, if that is one of just so many: in a file that was replaced anything may
    lie there.
    """
    if not is_member:
        return data
    header, data = bytes(data[:BLOCK]), data[BLOCK:]
    try:
        check_header(header, "", 0)
        return data if member_size(header, "", 0) == len(data) else _CHANGED
    except TarDamage:
        return _CHANGED
