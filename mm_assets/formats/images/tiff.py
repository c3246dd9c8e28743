"""Lossless split of a multi-frame TIFF into one file per frame, without decoding.

A frame becomes a TIFF file with the source's byte order and kind (classic or BigTIFF), all its tags, and its
strips or tiles byte for byte. Only offsets change. Bytes inside a value are never interpreted, so absolute
offsets hidden in private blobs (MakerNotes) still refer to the old file. A file with only one frame is copied
as it is.

The new file has the header, the directory, the values that do not fit into the directory, the directories it
points at (EXIF, GPS, SubIFDs …), then the strips or tiles. A `Relocation` is the plan for it: a list of
copies, and a list of patches (the offsets that have to change). Planning copies nothing.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import islice
from operator import add
from typing import Final

from mm_assets.formats.images import tiff_directories
from mm_assets.formats.images.tiff_directories import (
    DIRECTORY_TYPES,
    HEIGHT,
    LONG,
    LONG8,
    ORIENTATION,
    PAYLOAD_OFFSETS,
    TYPE_SIZES,
    WIDTH,
    Entry,
    Layout,
    as_view,
    dimensions,
    entry_number,
    find_entries,
    integers,
    iter_directories,
    iter_entries,
    next_directory,
    read_header,
)
from mm_assets.model.errors import ImageError, LosslessSplitError

_POINTER_TYPES: Final = DIRECTORY_TYPES | {LONG, LONG8}
_MAX_DEPTH: Final = 6
_MAX_PIECES: Final = 1 << 18  # strips or tiles of one image; this bounds the memory of planning one
_DIRECTORY_COST: Final = 128
_VALUE_COST: Final = 64


class Budget:
    """Limit on the work spent on one file, for all its frames, in bytes of directories and offset tables.

    The frames of a valid file share hardly anything, so parsing all of them costs about its length once.
    Without a limit, a small file whose frames all point at one large table would cost (frames x table) in
    time and memory.
    """

    def __init__(self, view: memoryview) -> None:
        self._left = min(8 * len(view) + (1 << 16), 1 << 25)

    def spend(self, size: int) -> None:
        """Spend some of the budget.

        Raises:
            ImageError: The file needs more than any valid file of its length.
        """
        self._left -= size
        if self._left < 0:
            raise ImageError("TIFF directories refer to more tables than the file can hold")


class Relocation:
    """Plan of one frame: call `add_directory` once, then `finish`."""

    __slots__ = (
        "_active",
        "_budget",
        "_layout",
        "_pieces",
        "_ranges",
        "_values",
        "_view",
        "copies",
        "cursor",
        "patches",
    )

    def __init__(self, view: memoryview, layout: Layout, budget: Budget) -> None:
        self._view = view
        self._layout = layout
        self._budget = budget
        self._values = 0
        self._active: list[int] = []
        self._ranges: list[tuple[int, int]] = []
        self._pieces: list[tuple[int, tuple[int, ...]]] = []
        self.cursor = layout.header_size
        self.copies: list[tuple[int, int, int]] = []
        """(destination, source, length), in bytes."""
        self.patches: list[tuple[int, bytes]] = [(0, layout.magic + layout.pointer.pack(layout.header_size))]

    def _reserve(self, size: int) -> int:
        # The specification requires values at even offsets (BigTIFF: multiples of 8).
        step = self._layout.pointer.size
        start = self.cursor + -self.cursor % (step if step == 8 else 2)
        self.cursor = start + size
        if self.cursor >= 1 << 32:
            raise LosslessSplitError("tags of more than 4 GiB")
        return start

    def add_directory(self, source: int) -> tuple[int, dict[int, Entry]]:
        """Add the directory at offset ``source`` with everything it points at.

        Returns:
            Its offset in the new file, and those of its entries that give place and size of the image.

        Raises:
            ImageError: The directory is damaged.
            LosslessSplitError: (an ImageError) It has structures that cannot be moved.
        """
        view, layout = self._view, self._layout
        if source in self._active or len(self._active) >= _MAX_DEPTH:
            raise ImageError(f"TIFF directories nest in a loop or too deep at offset {source}")
        number = entry_number(view, layout, source)
        entry_size, inline = layout.entry.size, layout.pointer.size
        length = layout.number.size + number * entry_size
        self._budget.spend(length + _DIRECTORY_COST)
        start = self._reserve(length + inline)  # the link to a next directory stays 0
        self.copies.append((start, source, length))
        field = start + layout.number.size + entry_size - inline
        parsed: dict[int, Entry] = {}
        pointers: list[Entry] = []
        for row, (tag, kind, values, value) in enumerate(iter_entries(view, layout, source, number)):
            if tag in tiff_directories.PARSED or kind in DIRECTORY_TYPES:
                if tag in parsed:
                    raise ImageError(f"TIFF directory at offset {source} has tag {tag} twice")
                if tag in tiff_directories.UNSUPPORTED:
                    raise LosslessSplitError(tiff_directories.UNSUPPORTED[tag])
                parsed[tag] = entry = Entry(row, tag, kind, values, value)
                if tag in tiff_directories.PAYLOAD_OFFSETS:
                    continue
                if tag in tiff_directories.DIRECTORY_TAGS or kind in DIRECTORY_TYPES:
                    pointers.append(entry)
                    continue
            if kind not in TYPE_SIZES:
                raise LosslessSplitError(f"TIFF tag {tag} has the unknown field type {kind}")
            size = TYPE_SIZES[kind] * values
            if size > inline:
                self._add_value(tag, value, size, field + row * entry_size)
        for offsets_tag, lengths_tag in tiff_directories.PAYLOADS:
            if offsets_tag in parsed:
                self._add_payload(source, parsed, parsed[offsets_tag], lengths_tag, field)
        if pointers:
            self._active.append(source)
            for entry in pointers:
                self._add_pointed(source, entry, field + entry.row * entry_size)
            self._active.pop()
        return start, parsed

    def _add_value(self, tag: int, source: int, size: int, field: int) -> None:
        self._budget.spend(_VALUE_COST)
        self._values += size
        # Values that overlap could make a frame many times larger than its file.
        if source + size > len(self._view) or self._values > len(self._view):
            raise ImageError(
                f"values of TIFF tag {tag} lie outside the {len(self._view)} bytes or overlap others"
            )
        start = self._reserve(size)
        self.copies.append((start, source, size))
        self.patches.append((field, self._layout.pointer.pack(start)))

    def _add_payload(
        self, directory: int, parsed: dict[int, Entry], entry: Entry, lengths_tag: int, field: int
    ) -> None:
        view, layout = self._view, self._layout
        if lengths_tag not in parsed:
            raise LosslessSplitError(f"TIFF tag {entry.tag} (offsets) without tag {lengths_tag} (lengths)")
        if not 0 < entry.values == parsed[lengths_tag].values <= _MAX_PIECES:
            raise ImageError(
                f"TIFF has {entry.values} payload offsets and {parsed[lengths_tag].values} payload lengths"
            )
        self._budget.spend(entry.values * 4)
        offsets = integers(view, layout, directory, entry)
        lengths = integers(view, layout, directory, parsed[lengths_tag])
        ends = list(map(add, offsets, lengths))
        if max(ends) > len(view):
            raise ImageError(f"TIFF is cut short: image data ends at byte {max(ends)}, {len(view)} given")
        if 0 not in lengths and offsets[1:] == tuple(ends[:-1]):
            ranges = [(offsets[0], ends[-1])]
        else:
            # A length of 0 with an offset of 0 is a hole (sparse file). With another offset, readers guess
            # the length.
            if any(offset and not length for offset, length in zip(offsets, lengths, strict=True)):
                raise LosslessSplitError("strip or tile with an offset but without a length")
            ranges = [(offset, end) for offset, end in zip(offsets, ends, strict=True) if end > offset]
        if any(start < layout.header_size for start, _ in ranges):
            raise ImageError("TIFF image data lies on the file's header")
        self._ranges += ranges
        if entry.tag == tiff_directories.STRIP_OFFSETS:
            self._check_raw(directory, parsed, lengths)
        # SHORT offsets may be too narrow for the new file, so all become as wide as its pointers.
        at = field + entry.row * layout.entry.size
        self._retype(at, layout.pointer_type)
        if entry.values > 1:
            start = self._reserve(entry.values * layout.pointer.size)
            self.patches.append((at, layout.pointer.pack(start)))
            at = start
        self._pieces.append((at, offsets))

    def _check_raw(self, directory: int, parsed: dict[int, Entry], lengths: tuple[int, ...]) -> None:
        """Refuse uncompressed strips that are shorter than their rows.

        Readers ignore the lengths of such strips and read on into unrelated bytes.

        Raises:
            ImageError: A strip is too short, or the directory does not describe its image.
        """

        def value(tag: int, default: tuple[int, ...]) -> tuple[int, ...]:
            return integers(self._view, self._layout, directory, parsed[tag]) if tag in parsed else default

        ycbcr = 6  # subsampled, so fewer bytes than samples
        if value(tiff_directories.COMPRESSION, (1,)) != (1,) or value(tiff_directories.PHOTOMETRIC, (0,)) == (
            ycbcr,
        ):
            return
        bits = value(tiff_directories.BITS_PER_SAMPLE, (1,))
        single = [
            value(tag, (1,))
            for tag in (
                tiff_directories.WIDTH,
                tiff_directories.HEIGHT,
                tiff_directories.SAMPLES_PER_PIXEL,
                tiff_directories.PLANAR,
            )
        ]
        single.append(value(tiff_directories.ROWS_PER_STRIP, single[1]))
        if not bits or any(len(numbers) != 1 or not numbers[0] for numbers in single):
            raise ImageError(f"TIFF directory at offset {directory} does not describe its image")
        (width,), (height,), (samples,), (planar,), (rows,) = single
        pixel = sum(bits) if len(bits) == samples else bits[0] * samples
        planes = samples if planar == 2 else 1
        rows = min(rows, height)
        strips = -(-height // rows)
        row = (width * pixel // planes + 7) // 8
        if planes * strips != len(lengths):
            raise ImageError(f"TIFF has {len(lengths)} strips, its raw pixels need {planes * strips}")
        for first in range(0, planes * strips, strips):
            *full, last = lengths[first : first + strips]
            if min(full, default=rows * row) < rows * row or last < (height - len(full) * rows) * row:
                raise ImageError(
                    f"TIFF strips are too short for {width}x{height} raw pixels in strips of {rows} rows"
                )

    def _add_pointed(self, directory: int, entry: Entry, field: int) -> None:
        """Add the directories that ``entry`` points at, and point it at their new offsets."""
        if entry.type not in _POINTER_TYPES:
            raise LosslessSplitError(f"TIFF tag {entry.tag} should be an offset, has field type {entry.type}")
        self._budget.spend(entry.values * 4)
        sources = integers(self._view, self._layout, directory, entry)
        pointer = struct.Struct(self._layout.order + ("I" if TYPE_SIZES[entry.type] == 4 else "Q"))
        at = field
        if entry.values * pointer.size > self._layout.pointer.size:
            at = self._reserve(entry.values * pointer.size)
            self.patches.append((field, self._layout.pointer.pack(at)))
        for index, source in enumerate(sources):
            # 0 means none; only SubIFDs may be chains.
            moved = self._add_chain(source, linked=entry.tag == tiff_directories.SUB_IFDS) if source else 0
            self.patches.append((at + index * pointer.size, pointer.pack(moved)))

    def _add_chain(self, source: int, linked: bool) -> int:
        first, link, seen = 0, -1, set[int]()
        while source:
            if source in seen:
                raise ImageError(f"TIFF directories form a loop at offset {source}")
            seen.add(source)
            start, _ = self.add_directory(source)
            if link < 0:
                first = start
            else:
                self.patches.append((link, self._layout.pointer.pack(start)))
            number = entry_number(self._view, self._layout, source)
            link = start + self._layout.number.size + number * self._layout.entry.size
            source = next_directory(self._view, self._layout, source, number) if linked else 0
        return first

    def _retype(self, field: int, kind: int) -> None:
        type_at = field + self._layout.pointer.size - self._layout.entry.size + 2
        self.patches.append((type_at, struct.pack(self._layout.order + "H", kind)))

    def finish(self) -> int:
        """Place the payload after the directories and return the size of the new file in bytes.

        Adjacent and overlapping ranges are moved as one, so the payload never grows, whatever parts of it are
        shared.

        Raises:
            LosslessSplitError: The result is too large for a classic TIFF.
        """
        starts: list[int] = []
        shifts: list[int] = []
        position = self._reserve(0)
        last = -1
        for start, end in sorted(self._ranges):
            if start > last:
                starts.append(start)
                shifts.append(position - start)
                self.copies.append((position, start, end - start))
            elif end > last:
                target, source, length = self.copies[-1]
                self.copies[-1] = (target, source, length + end - last)
            else:
                continue
            position += end - max(start, last)
            last = end
        code, top = ("Q", 1 << 64) if self._layout.pointer.size == 8 else ("I", 1 << 32)
        if position >= top:
            raise LosslessSplitError(f"{position} bytes are more than a classic TIFF can address")
        for at, offsets in self._pieces:
            if len(shifts) == 1:
                shift = shifts[0]
                moved = [offset + shift if offset else 0 for offset in offsets]
            else:
                moved = [
                    offset + shifts[bisect_right(starts, offset) - 1] if offset else 0 for offset in offsets
                ]
            self.patches.append((at, struct.pack(f"{self._layout.order}{len(moved)}{code}", *moved)))
        return position


@dataclass(frozen=True, slots=True, eq=False)
class FramePlan:
    """Plan to write one frame as a TIFF file.

    It keeps a view of the source, and so the source, alive.
    """

    size: int
    """Bytes of the stand-alone file."""
    width: int
    """Pixels, as stored (before `orientation` is applied)."""
    height: int
    orientation: int
    """EXIF orientation, 1..8."""
    _source: memoryview = field(repr=False)
    _head_size: int = field(repr=False)
    _copies: list[tuple[int, int, int]] = field(repr=False)
    _patches: list[tuple[int, bytes]] = field(repr=False)

    def write_into(self, dest: memoryview) -> None:
        """Write the file into ``dest``: ``size`` writable, contiguous bytes with any content.

        Raises:
            ValueError: ``dest`` has another size.
        """
        dest = as_view(dest)
        if len(dest) != self.size:
            raise ValueError(f"destination has {len(dest)} bytes, the frame {self.size}")
        source = self._source
        # Zeros for padding and absent links; the rest is overwritten.
        dest[: self._head_size] = bytes(self._head_size)
        for target, start, length in self._copies:
            dest[target : target + length] = source[start : start + length]
        for target, raw in self._patches:
            dest[target : target + len(raw)] = raw

    def to_bytes(self) -> bytes:
        """Return the file as bytes (one more copy than `write_into` needs)."""
        buffer = bytearray(self.size)
        self.write_into(memoryview(buffer))
        return bytes(buffer)


def plan_sound_frames(data: bytes | bytearray | memoryview) -> list[FramePlan | ImageError]:
    """Return for each frame, in file order, its plan or its error (not raised).

    If the chain of frames itself is damaged, the last item is the error of all frames from there on; their
    number is unknown.

    Raises:
        ImageError: ``data`` is no TIFF at all.
    """
    view = as_view(data)
    layout, offsets, broken = _walk(view, None)
    budget = Budget(view)
    is_single = len(offsets) == 1 and broken is None
    frames: list[FramePlan | ImageError] = []
    for offset in offsets:
        try:
            frames.append(_plan(view, layout, offset, budget, is_single))
        except ImageError as error:
            frames.append(error.with_traceback(None))
    if broken is not None:
        frames.append(broken)
    return frames


def split_frame(data: bytes | bytearray | memoryview, index: int) -> bytes:
    """Return one frame as a TIFF file. Damage after that frame goes unnoticed.

    Args:
        data: The TIFF file.
        index: Number of the frame, from 0.

    Raises:
        ImageError: There is no such frame, or it is damaged.
        LosslessSplitError: (an ImageError) It cannot be taken out exactly.
    """
    view = as_view(data)
    # A second frame is searched for because a single one is copied as it is.
    layout, offsets, broken = _walk(view, max(index + 1, 2))
    if not 0 <= index < len(offsets):
        raise broken or ImageError(f"no frame {index}: the TIFF has {len(offsets)}")
    is_single = len(offsets) == 1 and broken is None
    return _plan(view, layout, offsets[index], Budget(view), is_single).to_bytes()


def _walk(view: memoryview, limit: int | None) -> tuple[Layout, list[int], ImageError | None]:
    layout, first = read_header(view)
    offsets: list[int] = []
    walk = islice(iter_directories(view, layout, first), limit)
    try:
        while (offset := next(walk, None)) is not None:
            offsets.append(offset)
    except ImageError as error:
        return layout, offsets, error
    return layout, offsets, None


def _plan(view: memoryview, layout: Layout, offset: int, budget: Budget, is_single: bool) -> FramePlan:
    try:
        relocation = Relocation(view, layout, budget)
        _, entries = relocation.add_directory(offset)
        if not PAYLOAD_OFFSETS & entries.keys():
            raise ImageError(f"TIFF image without strips or tiles in the directory at offset {offset}")
        sides = dimensions(view, layout, offset, entries)
        size = relocation.finish()
    except LosslessSplitError:
        if not is_single:
            raise
        entries = find_entries(view, layout, offset, frozenset({WIDTH, HEIGHT, ORIENTATION}))
        sides = dimensions(view, layout, offset, entries)
    if is_single:
        return FramePlan(len(view), *sides, view, 0, [(0, 0, len(view))], [])
    return FramePlan(size, *sides, view, relocation.cursor, relocation.copies, relocation.patches)
