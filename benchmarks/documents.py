"""Documents as in MINT-1T PDF: where their texts and images stand, and the image files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from benchmarks.photographs import Photographs, draw_size

Layout = Literal["tiff", "members"]
"""``tiff``: all images of a document are frames of one TIFF, compressed as JPEG; ``members``: each is a
JPEG file.
"""

LAYOUTS: tuple[Layout, ...] = ("tiff", "members")

_QUALITY = 80
_PROBE_SIDE = 768


@dataclass(frozen=True)
class Document:
    """``is_image`` says of each position whether an image or a text stands there, ``sizes`` has width and
    height of each image in order, ``files`` the image files: one for each image, or one for all.
    """

    is_image: tuple[bool, ...]
    sizes: tuple[tuple[int, int], ...]
    files: tuple[bytes, ...]


def make_documents(
    layout: Layout, count: int, image_bytes: int, images: tuple[int, int], seed: int
) -> list[Document]:
    """``count`` documents of ``images`` (fewest, most) images with about ``image_bytes`` in all; the same
    call gives the same bytes.
    """
    photographs = Photographs(seed)
    rng = np.random.default_rng([seed, 1])
    probe = _encoded(
        layout, [photographs.take(np.random.default_rng(seed), _PROBE_SIDE, _PROBE_SIDE).convert("RGB")]
    )[0]
    area = image_bytes / (sum(images) / 2) * _PROBE_SIDE**2 / len(probe)
    return [_document(layout, photographs, rng, area, images) for _ in range(count)]


def _document(
    layout: Layout, photographs: Photographs, rng: np.random.Generator, area: float, images: tuple[int, int]
) -> Document:
    kinds = [True] * int(rng.integers(images[0], images[1] + 1)) + [False] * int(rng.integers(3, 9))
    # As PDF extraction gives them: clusters of images with a text between.
    places = np.argsort(
        rng.random(len(kinds)) + np.array([0.35 * (place % 4) for place in range(len(kinds))]), kind="stable"
    )
    sizes = [draw_size(rng, area) for _ in range(sum(kinds))]
    pictures = [photographs.take(rng, *size) for size in sizes]
    return Document(tuple(kinds[place] for place in places), tuple(sizes), tuple(_encoded(layout, pictures)))


def _encoded(layout: Layout, pictures: Sequence[Image.Image]) -> list[bytes]:
    if layout == "members":
        return [_saved(picture, "JPEG", quality=_QUALITY) for picture in pictures]
    return [
        _saved(
            pictures[0],
            "TIFF",
            save_all=True,
            append_images=pictures[1:],
            compression="jpeg",
            quality=_QUALITY,
        )
    ]


def _saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()
