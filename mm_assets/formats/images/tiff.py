"""Lossless split of a multi-frame TIFF into one file per frame, without decoding.

A frame becomes a TIFF file with the source's byte order and kind (classic or BigTIFF), all its tags, and its
strips or tiles byte for byte. Only offsets change. Bytes inside a value are never interpreted, so absolute
offsets hidden in private blobs (MakerNotes) still refer to the old file. A file with only one frame is copied
as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from .errors import ImageError, LosslessSplitError
from .tiff_ifd import (
    Layout,
    as_view,
    dimensions,
    find_entries,
    iter_directories,
    read_header,
)
from .tiff_relocate import Budget, Relocation
from .tiff_tags import HEIGHT, ORIENTATION, PAYLOAD_OFFSETS, WIDTH


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


def frame_count(data: bytes | bytearray | memoryview) -> int:
    """Return the number of frames: the directories of the file's main chain, with thumbnails and masks in it.

    Raises:
        ImageError: ``data`` is no TIFF, or a directory is damaged.
    """
    view = as_view(data)
    layout, first = read_header(view)
    return sum(1 for _ in iter_directories(view, layout, first))


def plan_frames(data: bytes | bytearray | memoryview) -> list[FramePlan]:
    """Return a plan for each frame, in file order.

    Raises:
        ImageError: A frame is damaged.
        LosslessSplitError: (an ImageError) A frame cannot be taken out exactly. `plan_sound_frames` returns
            the others.
    """
    plans: list[FramePlan] = []
    for plan in plan_sound_frames(data):
        if isinstance(plan, ImageError):
            raise plan
        plans.append(plan)
    return plans


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
