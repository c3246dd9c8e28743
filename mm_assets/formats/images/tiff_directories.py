"""TIFF image file directories (IFDs): parsing of their headers, entries and links.

Classic TIFF and BigTIFF, in both byte orders. Nothing here trusts the file: every offset is checked before it
is read, and every count is checked against the bytes that exist.

* Tags: those that the split has to interpret are named here; all others are copied as they are.
* `count_frames` counts the frames of a TIFF inside a larger file, from its directories alone.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from mm_assets.model.errors import ImageError

WIDTH: Final = 256
HEIGHT: Final = 257
BITS_PER_SAMPLE: Final = 258
COMPRESSION: Final = 259
PHOTOMETRIC: Final = 262
STRIP_OFFSETS: Final = 273
ORIENTATION: Final = 274
SAMPLES_PER_PIXEL: Final = 277
ROWS_PER_STRIP: Final = 278
STRIP_LENGTHS: Final = 279
PLANAR: Final = 284
SUB_IFDS: Final = 330

# Offsets and lengths of payload: strips, tiles, and the one stream of an old-style JPEG or an EXIF thumbnail.
PAYLOADS: Final = ((STRIP_OFFSETS, STRIP_LENGTHS), (324, 325), (513, 514))
PAYLOAD_OFFSETS: Final = frozenset(offsets for offsets, _ in PAYLOADS)
# SubIFDs, GlobalParametersIFD, EXIF, GPS, Interoperability.
DIRECTORY_TAGS: Final = frozenset({SUB_IFDS, 400, 34665, 34853, 40965})
UNSUPPORTED: Final = {
    288: "FreeOffsets (tag 288) point at unused parts of the file",
    519: "old-style JPEG quantization tables (tag 519) lie outside the directory",
    520: "old-style JPEG DC tables (tag 520) lie outside the directory",
    521: "old-style JPEG AC tables (tag 521) lie outside the directory",
    50933: "ExtraCameraProfiles (tag 50933) point at files within the file",
}
PARSED: Final = frozenset(
    {WIDTH, HEIGHT, ORIENTATION, BITS_PER_SAMPLE, COMPRESSION, PHOTOMETRIC}
    | {SAMPLES_PER_PIXEL, ROWS_PER_STRIP, PLANAR}
    | {tag for pair in PAYLOADS for tag in pair} | DIRECTORY_TAGS | UNSUPPORTED.keys()
)  # fmt: skip


LONG: Final = 4
LONG8: Final = 16
# IFD, IFD8: types whose value is the offset of a directory.
DIRECTORY_TYPES: Final = frozenset({13, 18})

# Bytes of one value, by field type.
TYPE_SIZES: Final[dict[int, int]] = {
    1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8,
}  # fmt: skip
_UNSIGNED: Final[dict[int, str]] = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte order and field widths of one TIFF file."""

    order: str
    magic: bytes
    number: struct.Struct
    """The number of entries, at the start of a directory."""
    entry: struct.Struct
    """Tag, type, count, value field (raw: an offset, or the value itself in the file's byte order)."""
    pointer: struct.Struct
    """An offset; a value field has the same width."""
    header_size: int
    pointer_type: int


def _layout(order: str, big: bool) -> Layout:
    mark = b"II" if order == "<" else b"MM"
    if big:
        magic = mark + struct.pack(order + "HHH", 43, 8, 0)
        kinds, header_size, pointer_type = ("Q", "HHQQ", "Q"), 16, LONG8
    else:
        magic = mark + struct.pack(order + "H", 42)
        kinds, header_size, pointer_type = ("H", "HHII", "I"), 8, LONG
    number, entry, pointer = (struct.Struct(order + kind) for kind in kinds)
    return Layout(order, magic, number, entry, pointer, header_size, pointer_type)


_LAYOUTS: Final = tuple(_layout(order, big) for big in (False, True) for order in "<>")
_BY_MAGIC: Final = {layout.magic[:4]: layout for layout in _LAYOUTS}

# Far above any real file; they bound the cost of a malicious one.
_MAX_ENTRIES: Final = 4096
_MAX_DIRECTORIES: Final = 1 << 16


class Entry(NamedTuple):
    """One directory entry."""

    row: int
    """Index in the directory, from 0."""
    tag: int
    type: int
    values: int
    """Number of values of that type."""
    field: int
    """The raw value field: an offset, or the values themselves."""


def as_view(data: bytes | bytearray | memoryview) -> memoryview:
    """Return a flat view of unsigned bytes; Arrow buffers are signed, which prevents slice assignment."""
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def read_header(view: memoryview) -> tuple[Layout, int]:
    """Return the file's layout and the offset of its first directory.

    Raises:
        ImageError: This is no TIFF.
    """
    layout = _BY_MAGIC.get(bytes(view[:4]))
    if layout is None or len(view) < layout.header_size or bytes(view[: len(layout.magic)]) != layout.magic:
        raise ImageError("not a TIFF: no valid header")
    return layout, layout.pointer.unpack_from(view, layout.header_size - layout.pointer.size)[0]


class FileBytes:
    """The bytes of a TIFF inside an open file, each read when it is asked for."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self._fd, self._offset, self._size = fd, offset, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        start, stop, _ = span.indices(self._size)
        data = os.pread(self._fd, stop - start, self._offset + start)
        if len(data) < stop - start:
            raise ImageError(f"the file ends before byte {self._offset + stop}")
        return data


def entry_number(view: memoryview | FileBytes, layout: Layout, offset: int) -> int:
    """Return the number of entries of the directory at ``offset``, all of them inside the file.

    Raises:
        ImageError: The directory lies outside the file, is empty or absurdly long.
    """
    if not layout.header_size <= offset <= len(view) - layout.number.size:
        raise ImageError(f"TIFF directory at offset {offset} lies outside the {len(view)} bytes")
    number: int = layout.number.unpack(view[offset : offset + layout.number.size])[0]
    if not 0 < number <= _MAX_ENTRIES:
        raise ImageError(f"TIFF directory at offset {offset} claims {number} entries")
    if offset + layout.number.size + number * layout.entry.size > len(view):
        raise ImageError(
            f"TIFF directory at offset {offset} claims {number} entries: more than {len(view)} bytes hold"
        )
    return number


def iter_entries(
    view: memoryview, layout: Layout, offset: int, number: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (tag, type, count, raw value field) of each entry; ``number`` comes from `entry_number`."""
    start = offset + layout.number.size
    return layout.entry.iter_unpack(view[start : start + number * layout.entry.size])


def next_directory(view: memoryview | FileBytes, layout: Layout, offset: int, number: int) -> int:
    """Return the offset of the next directory in the chain, 0 at the end of it.

    Raises:
        ImageError: The directory is cut short.
    """
    at = offset + layout.number.size + number * layout.entry.size
    if at + layout.pointer.size > len(view):
        raise ImageError(f"TIFF directory at offset {offset} is cut short: {len(view)} bytes given")
    following: int = layout.pointer.unpack(view[at : at + layout.pointer.size])[0]
    return following


def iter_directories(view: memoryview | FileBytes, layout: Layout, first: int) -> Iterator[int]:
    """Yield the offsets of the directories of a chain, in order.

    Raises:
        ImageError: A link is damaged; the valid ones before it have been yielded.
    """
    offset, seen, room = first, set[int](), len(view)
    if offset == 0:
        raise ImageError("TIFF without a directory")
    while offset:
        if offset in seen:
            raise ImageError(f"TIFF directories form a loop at offset {offset}")
        if len(seen) == _MAX_DIRECTORIES:
            raise ImageError(f"TIFF has more than {_MAX_DIRECTORIES} directories")
        number = entry_number(view, layout, offset)
        following = next_directory(view, layout, offset, number)
        # Valid directories do not overlap, so together they fit into the file; this also bounds the work.
        room -= layout.number.size + number * layout.entry.size + layout.pointer.size
        if room < 0:
            raise ImageError("TIFF directories overlap each other")
        seen.add(offset)
        yield offset
        offset = following


def integers(view: memoryview, layout: Layout, directory: int, entry: Entry) -> tuple[int, ...]:
    """Return the unsigned values of an entry of the directory at offset ``directory``.

    Raises:
        ImageError: The field's type is no unsigned integer, or the values lie outside the file.
    """
    code = _UNSIGNED.get(entry.type)
    if code is None:
        raise ImageError(f"TIFF tag {entry.tag} has field type {entry.type}, expected an unsigned integer")
    size = TYPE_SIZES[entry.type] * entry.values
    width = layout.pointer.size
    at = entry.field
    if size <= width:
        at = directory + layout.number.size + (entry.row + 1) * layout.entry.size - width
    elif at + size > len(view):
        raise ImageError(f"values of TIFF tag {entry.tag} lie outside the {len(view)} bytes")
    return struct.unpack_from(f"{layout.order}{entry.values}{code}", view, at)


def dimensions(
    view: memoryview, layout: Layout, directory: int, entries: dict[int, Entry]
) -> tuple[int, int, int]:
    """Return the stored width and height in pixels, and the EXIF orientation (1 if absent or not 1..8).

    Args:
        view: The file.
        layout: Its layout.
        directory: Offset of the directory.
        entries: Entries of that directory, by tag.

    Raises:
        ImageError: A side is missing or zero.
    """
    sides: list[int] = []
    for tag, side in ((WIDTH, "width"), (HEIGHT, "height")):
        entry = entries.get(tag)
        if entry is None or entry.values != 1:
            raise ImageError(f"TIFF directory at offset {directory} states no {side}")
        sides += integers(view, layout, directory, entry)
    if not all(sides):
        raise ImageError(f"TIFF image of {sides[0]}x{sides[1]} pixels")
    return sides[0], sides[1], orientation(view, layout, directory, entries.get(ORIENTATION))


def orientation(view: memoryview, layout: Layout, directory: int, entry: Entry | None) -> int:
    """Return the EXIF orientation 1..8; 1 if it is absent or invalid, as decoders do."""
    if entry is None or entry.values != 1 or entry.type not in _UNSIGNED:
        return 1
    value = integers(view, layout, directory, entry)[0]
    return value if 1 <= value <= 8 else 1


def find_entries(view: memoryview, layout: Layout, directory: int, tags: frozenset[int]) -> dict[int, Entry]:
    """Return the entries with one of ``tags`` that the directory at offset ``directory`` has.

    Raises:
        ImageError: A tag occurs twice; readers disagree on which one counts.
    """
    number = entry_number(view, layout, directory)
    found: dict[int, Entry] = {}
    for row, (tag, kind, values, field) in enumerate(iter_entries(view, layout, directory, number)):
        if tag in tags:
            if tag in found:
                raise ImageError(f"TIFF directory at offset {directory} has tag {tag} twice")
            found[tag] = Entry(row, tag, kind, values, field)
    return found


_LONGEST_HEADER = 16


def count_frames(fd: int, offset: int, size: int) -> tuple[int, ImageError | None]:
    """Count the frames of a TIFF inside an open file: the valid directories of its main chain.

    Reads two fields per directory with ``pread``; the file position is neither used nor moved.

    Args:
        fd: Descriptor of the file.
        offset: First byte of the TIFF in it.
        size: Bytes of the TIFF.

    Returns:
        The count, and the error that ends the chain early (else None). The error is returned, not raised,
        because the frames before it can be used; it is the same error that `tiff.plan_sound_frames` reports.
    """
    count = 0
    try:
        layout, first = read_header(memoryview(os.pread(fd, min(size, _LONGEST_HEADER), offset)))
        for _ in iter_directories(FileBytes(fd, offset, size), layout, first):
            count += 1
    except ImageError as error:
        return count, error.with_traceback(None)
    return count, None
