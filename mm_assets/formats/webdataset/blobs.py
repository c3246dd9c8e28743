"""Image bytes of rows, read from a tar straight into one Arrow buffer."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from mm_assets.formats.images.headers import CONTENT_TYPES, sniff
from mm_assets.formats.images.tiff import FramePlan, plan_sound_frames
from mm_assets.formats.tar.scan import Member, read_members
from mm_assets.formats.webdataset.rows import ResolvedContent, Row
from mm_assets.model.errors import DANGLING_REFERENCE, Fault, ImageError, lost_frame
from mm_assets.model.nested_types import blob_array

_SNIFF_BYTES = 64
# Bytes of all split frames per byte of their TIFF: frames that share strips could take far more.
_MAX_GROWTH = 2
_FRAME_RESERVE = 1 << 16
_FRAME_HEAD = 1 << 10  # usual largest size of a frame's directory


class BlobBuilder:
    """Builder of ``binary_content`` for some rows.

    A row whose image cannot be read gets a fault in ``error``. ``frames`` has for each TIFF, by name, its
    member, its number of frames, and the number of frames that a sample references.
    """

    def __init__(self, descriptor: int, uri: str) -> None:
        self._descriptor = descriptor
        self._uri = uri
        self.frames: dict[str, tuple[Member, int, int]] = {}
        self._tiff: str | None = None  # name of the TIFF being split; a sample has one
        self._plans: list[FramePlan | ImageError] | ImageError = []
        self._scratch = memoryview(b"")

    def build(self, rows: Sequence[Row]) -> pa.Array:
        """Return one value per row (null without content), as ``large_binary`` over a single buffer."""
        blobs = _Blobs(_expected_bytes(rows))
        for row in rows:
            content = row.content
            if content is None:
                if row.binary is None:
                    blobs.add_null()
                else:
                    blobs.add(len(row.binary))[:] = row.binary
            elif content.frame is None:
                view = blobs.add(content.member.size)
                read_members(self._descriptor, [content.member], view, self._uri)
                if row.content_type is None and not row.is_typed:
                    row.content_type = _content_type(view)
            elif (plan := self._frame(row, content, content.frame)) is None:
                blobs.add_null()
            else:
                plan.write_into(blobs.add(plan.size))
                if row.content_type is None and not row.is_typed:
                    row.content_type = CONTENT_TYPES["tiff"]
        return blobs.array()

    def _frame(self, row: Row, content: ResolvedContent, frame: int) -> FramePlan | None:
        name = content.member.name
        if name != self._tiff:
            self._tiff, self._plans = name, self._plan(content.member)
        plans = self._plans
        if isinstance(plans, ImageError):
            row.error = lost_frame(name, frame, plans)
            return None
        counts = self.frames.get(name)
        if counts is None or counts[2] < content.frames:  # samples may share a TIFF
            self.frames[name] = (content.member, len(plans), content.frames)
        if frame < len(plans):
            plan = plans[frame]
        elif plans and isinstance(plans[-1], ImageError):  # the chain of frames ends there in damage
            plan = plans[-1]
        else:
            row.error = surplus_reference(name, frame, len(plans), content.frames)
            return None
        if isinstance(plan, ImageError):
            row.error = lost_frame(name, frame, plan)
            return None
        return plan

    def _plan(self, member: Member) -> list[FramePlan | ImageError] | ImageError:
        """Return the frames of a TIFF, valid until the next TIFF is planned.

        The TIFF is split right after it was read, while it is in the processor's cache.
        """
        if len(self._scratch) < member.size:
            # Not a bytearray, which would be filled with zeros first.
            self._scratch = memoryview(pa.allocate_buffer(member.size)).cast("B")
        data = self._scratch[: member.size]
        read_members(self._descriptor, [member], data, self._uri)
        try:
            plans = plan_sound_frames(data)
        except ImageError as error:
            return error
        size = sum(plan.size for plan in plans if isinstance(plan, FramePlan))
        if size > _MAX_GROWTH * member.size + _FRAME_RESERVE * len(plans):
            return ImageError(f"its frames share data: {len(plans)} of them would take {size} bytes")
        return plans


class _Blobs:
    """Values in sequence in one Arrow buffer, which grows if the expected bytes do not suffice."""

    def __init__(self, expected: int) -> None:
        self._buffer = pa.allocate_buffer(expected, resizable=True)
        self._view = memoryview(self._buffer).cast("B")
        self._offsets = [0]
        self._present: list[bool] = []

    def add(self, size: int) -> memoryview:
        """Return the buffer of one more value, to be filled before the next is added."""
        start = self._offsets[-1]
        if start + size > len(self._view):
            self._view.release()
            self._buffer.resize(max(start + size, start * 3 // 2))
            self._view = memoryview(self._buffer).cast("B")
        self._offsets.append(start + size)
        self._present.append(True)
        return self._view[start : start + size]

    def add_null(self) -> None:
        self._offsets.append(self._offsets[-1])
        self._present.append(False)

    def array(self) -> pa.Array:
        """Return the values as ``large_binary``; nothing can be added afterwards."""
        self._view.release()
        self._buffer.resize(self._offsets[-1])
        return blob_array(self._offsets, self._buffer, self._present)


def _expected_bytes(rows: Sequence[Row]) -> int:
    total = 0
    tiffs: set[str] = set()
    for row in rows:
        if row.content is None:
            total += len(row.binary or b"")
        elif row.content.frame is None:
            total += row.content.member.size
        else:
            total += _FRAME_HEAD
            if row.content.member.name not in tiffs:
                tiffs.add(row.content.member.name)
                total += row.content.member.size
    return total


def surplus_reference(member: str, frame: int, frames: int, references: int) -> Fault:
    """Return the fault of an item whose frame does not exist."""
    return Fault(
        DANGLING_REFERENCE,
        f"dangling reference: frame {frame} of {member!r}: "
        f"it has {frames} frames for {references} references",
    )


def _content_type(view: memoryview) -> str | None:
    kind = sniff(view[:_SNIFF_BYTES])
    return CONTENT_TYPES.get(kind) if kind else None
