"""Thumbnails of a shard's first images, as Markdown for the UI."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field

import pyarrow.compute as pc

from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.probe import probe
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.buffers import binary_views
from mm_assets.interleaved.steps import StepResult

_HEIGHT = 72  # pixels
_LARGEST = 16_000_000  # pixels; a larger image is not worth decoding for a preview


@dataclass
class ThumbnailStrip:
    """A step that changes nothing and keeps the first ``limit`` images of a shard, scaled down."""

    limit: int = 4
    pictures: list[bytes] = field(default_factory=list)

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        if len(self.pictures) < self.limit:
            images = batch.data.filter(pc.equal(batch.data.column("modality"), "image")).column(
                "binary_content"
            )
            for chunk in images.chunks:
                for view in binary_views(chunk.slice(0, 4 * self.limit)):
                    if (
                        view is not None
                        and len(self.pictures) < self.limit
                        and (picture := thumbnail(view)) is not None
                    ):
                        self.pictures.append(picture)
        return StepResult(batch)

    def markdown(self) -> str:
        """Return the pictures as inline images; empty if there are none."""
        return " ".join(f"![](data:image/jpeg;base64,{base64.b64encode(p).decode()})" for p in self.pictures)


def thumbnail(data: memoryview) -> bytes | None:
    """Return a small JPEG of an image; None if it cannot be decoded or is too large to be worth it."""
    from PIL import Image

    try:
        info = probe(data)
        if info.width * info.height > _LARGEST:
            return None
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (4 * _HEIGHT, _HEIGHT))
            image.thumbnail((4 * _HEIGHT, _HEIGHT))
            output = io.BytesIO()
            image.convert("RGB").save(output, "JPEG", quality=70)
    # What Pillow raises on bad bytes.
    except (ImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return output.getvalue()
