"""Thumbnails of a shard's first images, side by side in one small picture for the UI."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.images.decode import opened, refuse_bomb
from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.probe import probe
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.buffers import binary_views
from mm_assets.interleaved.steps import Step, StepResult

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_STRIP_BYTES: Final = 720
"""Bytes of a strip. As Markdown it stays below 1,000 characters: the UI shows that without a click."""

_HEIGHT: Final = 48  # pixels
_WIDEST: Final = 2 * _HEIGHT
_GAP: Final = 4
_LARGEST: Final = 16_000_000  # pixels; a larger image is not worth decoding for a preview
_TRIED: Final = 4  # images that are tried for each one shown
_QUALITIES: Final = (40, 15, 4, 1)


@dataclass
class ThumbnailStrip:
    """A step that changes nothing and keeps the first ``limit`` images of a shard, scaled down."""

    limit: int = 3
    pictures: list[Image] = field(default_factory=list)

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        self.add(batch.data)
        return StepResult(batch)

    def add(self, rows: pa.Table) -> None:
        """Keep the images of an interleaved table, until there are enough."""
        if len(self.pictures) >= self.limit:
            return
        images = rows.filter(pc.equal(rows.column("modality"), "image")).column("binary_content")
        for chunk in images.chunks:
            for view in binary_views(chunk.slice(0, _TRIED * self.limit)):
                if len(self.pictures) >= self.limit:
                    return
                if view is not None and (picture := thumbnail(view)) is not None:
                    self.pictures.append(picture)

    def of_removed(self, step: Step) -> Step:
        """Return a step that does what ``step`` does, and keeps images that it takes out."""

        def watched(batch: InterleavedBatch) -> StepResult:
            outcome = step(batch)
            if outcome.removed is not None:
                self.add(outcome.removed)
            return outcome

        return watched

    def webp(self) -> bytes:
        """Return the pictures side by side, in at most `MAX_STRIP_BYTES`; empty if there are none.

        Where they are too rich for that, the last ones are left out.
        """
        for shown in range(len(self.pictures), 0, -1):
            strip = _side_by_side(self.pictures[:shown])
            for quality in _QUALITIES:
                output = io.BytesIO()
                strip.save(output, "WEBP", quality=quality)
                if output.tell() <= MAX_STRIP_BYTES:
                    return output.getvalue()
        return b""


def thumbnail(data: memoryview) -> Image | None:
    """Return an image scaled down; None if it cannot be decoded or is too large to be worth it."""
    try:
        info = probe(data)
        refuse_bomb(info.width, info.height, _LARGEST)
        with opened(bytes(data), info.format, _LARGEST) as image:
            image.draft("RGB", (_WIDEST, _HEIGHT))
            image.thumbnail((_WIDEST, _HEIGHT))
            return image.convert("RGB")
    except ImageError:
        return None
    except Exception:  # noqa: BLE001  plugins raise whatever their parser runs into; a preview is no check
        return None


def _side_by_side(pictures: Sequence[Image]) -> Image:
    from PIL import Image

    width = sum(picture.width + _GAP for picture in pictures) - _GAP
    strip = Image.new("RGB", (width, max(picture.height for picture in pictures)), "white")
    left = 0
    for picture in pictures:
        strip.paste(picture, (left, 0))
        left += picture.width + _GAP
    return strip
