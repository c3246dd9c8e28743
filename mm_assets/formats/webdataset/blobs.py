"""Image bytes of rows, read from the tar straight into one Arrow buffer."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.probe import CONTENT_TYPES, sniff
from mm_assets.formats.images.tiff import FramePlan, plan_sound_frames
from mm_assets.formats.webdataset.resolve import Content
from mm_assets.formats.webdataset.rows import Row
from mm_assets.formats.webdataset.tar_scan import Member, read_members

_SNIFF_BYTES = 64
_GROWTH = 2  # split frames take at most this many times their TIFF: shared strips could otherwise blow it up
_FRAME_RESERVE = 1 << 16

_Piece = Member | FramePlan | bytes


class BlobBuilder:
    """Builds ``binary_content`` of some rows; rows whose image cannot be had get a message in ``error``."""

    def __init__(self, descriptor: int, uri: str) -> None:
        self._descriptor = descriptor
        self._uri = uri
        self.frames: dict[str, tuple[Member, int, int]] = {}  # TIFFs by name, how many frames each has, how many of them a sample refers to

    def build(self, rows: Sequence[Row]) -> pa.Array:
        """One value per row (null without content), as ``large_binary`` over a single buffer."""
        pieces = self._pieces(rows)
        sizes = [_size(piece) for piece in pieces]
        total = sum(sizes)
        buffer = pa.allocate_buffer(total)
        view = memoryview(buffer).cast("B")
        offsets = [0]
        at = 0
        for row, piece, size in zip(rows, pieces, sizes, strict=True):
            target = view[at : at + size]
            if isinstance(piece, Member):
                read_members(self._descriptor, [piece], target, self._uri)
            elif isinstance(piece, FramePlan):
                piece.write_into(target)
            elif piece is not None:
                target[:] = piece
            if row.content_type is None and not row.is_typed and row.content is not None and piece is not None:
                row.content_type = _content_type(target)
            at += size
            offsets.append(at)
        present = pa.array([piece is not None for piece in pieces])
        validity = present.buffers()[1] if rows else None
        packed = [validity, pa.array(offsets, pa.int64()).buffers()[1], buffer]
        return pa.Array.from_buffers(pa.large_binary(), len(rows), packed)

    def _pieces(self, rows: Sequence[Row]) -> list[_Piece | None]:
        frames: dict[str, list[FramePlan | ImageError] | ImageError] = {}
        pieces: list[_Piece | None] = []
        for row in rows:
            content = row.content
            if content is None:
                pieces.append(row.binary)
            elif content.frame is None:
                pieces.append(content.member)
            else:
                name = content.member.name
                if name not in frames:
                    frames[name] = self._plan(content)
                elif name in self.frames and content.frames > self.frames[name][2]:  # of another sample
                    self.frames[name] = (*self.frames[name][:2], content.frames)
                pieces.append(self._frame(row, frames[name]))
        return pieces

    def _plan(self, content: Content) -> list[FramePlan | ImageError] | ImageError:
        member = content.member
        data = memoryview(pa.allocate_buffer(member.size)).cast("B")  # unlike a bytearray not filled with zeros first
        read_members(self._descriptor, [member], data, self._uri)
        try:
            plans = plan_sound_frames(data)
        except ImageError as error:
            return error
        size = sum(plan.size for plan in plans if isinstance(plan, FramePlan))
        if size > _GROWTH * member.size + _FRAME_RESERVE * len(plans):
            return ImageError(f"its frames share data: {len(plans)} of them would take {size} bytes")
        self.frames[member.name] = (member, len(plans), content.frames)
        return plans

    def _frame(self, row: Row, plans: list[FramePlan | ImageError] | ImageError) -> _Piece | None:
        assert row.content is not None and row.content.frame is not None
        name, frame = row.content.member.name, row.content.frame
        plan: FramePlan | ImageError
        if isinstance(plans, ImageError):
            plan = plans
        elif frame < len(plans):
            plan = plans[frame]
        elif plans and isinstance(plans[-1], ImageError):  # the chain of frames is broken there
            plan = plans[-1]
        else:
            row.error = surplus_reference(name, frame, len(plans), row.content.frames)
            return None
        if isinstance(plan, ImageError):
            row.error = lost_frame(name, frame, plan)
            return None
        alone = not isinstance(plans, ImageError) and len(plans) == 1
        return row.content.member if alone else plan  # a file of one frame stays untouched


def lost_frame(member: str, frame: int, error: ImageError) -> str:
    """The error of an item whose frame is damaged."""
    return f"failed to extract frame {frame} from {member!r}: {error}"


def surplus_reference(member: str, frame: int, frames: int, references: int) -> str:
    """The error of an item whose frame is not there."""
    return f"dangling reference: frame {frame} of {member!r}: it has {frames} frames for {references} references"


def _size(piece: _Piece | None) -> int:
    if piece is None:
        return 0
    return len(piece) if isinstance(piece, bytes) else piece.size


def _content_type(view: memoryview) -> str | None:
    kind = sniff(view[:_SNIFF_BYTES])
    return CONTENT_TYPES.get(kind) if kind else None
