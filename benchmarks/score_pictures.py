"""Photographs degraded in known ways, each with the decision that a filter should take."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from benchmarks.photographs import Photographs
from benchmarks.qr_codes import other_code, with_qr_code
from benchmarks.routes import MAX_ASPECT_RATIO, MIN_ASPECT_RATIO

Picture = npt.NDArray[np.uint8]

_LONGEST_SIDE = 1024
_RADII = (0, 2, 4, 8)
_SHARES = (0.02, 0.1, 0.3)  # of the picture; the threshold is 0.05
_LARGE_SHARE = 0.05
_SYNTHETIC = 12
_SEED = 20_261


@dataclass(frozen=True)
class Labelled:
    """A picture made from the photograph of number ``source`` to test a filter (``group``): ``kind`` says
    how, ``drop`` whether the filter should drop it.
    """

    group: str
    kind: str
    source: int
    data: bytes
    drop: bool = False


def photographs(folder: Path | None) -> list[Picture]:
    """The photographs of a folder, at most 1024 pixels a side; without one, some that are made."""
    if folder is None:
        made, rng = Photographs(_SEED), np.random.default_rng(_SEED)
        return [np.asarray(made.take(rng, 1024, 768).convert("RGB")) for _ in range(_SYNTHETIC)]
    found = []
    for file in sorted(folder.iterdir()):
        with Image.open(file) as image:
            picture = image.convert("RGB")
        picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE), Image.Resampling.LANCZOS)
        found.append(np.asarray(picture))
    return found


def labelled(pictures: Sequence[Picture]) -> list[Labelled]:
    """All degraded pictures, in the order of their sources."""
    rng = np.random.default_rng(_SEED)
    makers = (_blurred, _with_codes, _copies, _turned, _formats)
    return [
        made
        for number, picture in enumerate(pictures)
        for maker in makers
        for made in maker(number, picture, rng)
    ]


def _blurred(number: int, picture: Picture, rng: np.random.Generator) -> Iterator[Labelled]:
    image = Image.fromarray(picture)
    for radius in _RADII:
        data = encoded(image.filter(ImageFilter.GaussianBlur(radius)) if radius else image)
        yield Labelled("blur", f"radius {radius}", number, data, radius > 0)


def _with_codes(number: int, picture: Picture, rng: np.random.Generator) -> Iterator[Labelled]:
    ways: dict[str, tuple[dict[str, Any], int, float]] = {
        "upright": ({}, 85, 0),
        "rotated": ({"angle": rng.uniform(5, 85)}, 85, 0),
        "in perspective": ({"angle": rng.uniform(-20, 20), "tilt": rng.uniform(0.3, 0.6)}, 85, 0),
        "light on dark": ({"inverted": True}, 85, 0),
        "JPEG quality 20": ({}, 20, 0),
        "blurred, radius 2": ({}, 85, 2),
        "without quiet zone": ({"quiet": 0}, 85, 0),
    }
    for kind, (options, quality, radius) in ways.items():
        for share in _SHARES:
            made, covered = with_qr_code(picture, share, rng, **options)
            image = Image.fromarray(made).filter(ImageFilter.GaussianBlur(radius))
            yield Labelled("qr", kind, number, encoded(image, quality=quality), covered >= _LARGE_SHARE)
    yield Labelled("qr", "no code", number, encoded(Image.fromarray(picture)))
    for kind in ("DataMatrix", "Aztec", "PDF417"):
        yield Labelled("qr", "another code", number, encoded(Image.fromarray(other_code(picture, kind))))


def _copies(number: int, picture: Picture, rng: np.random.Generator) -> Iterator[Labelled]:
    image = Image.fromarray(picture)
    for quality in (90, 50, 20):
        yield Labelled("copy", f"JPEG quality {quality}", number, encoded(image, quality=quality))
    half = image.resize((max(1, image.width // 2), max(1, image.height // 2)), Image.Resampling.LANCZOS)
    yield Labelled("copy", "half as large", number, encoded(half))
    yield Labelled("copy", "WebP quality 50", number, encoded(image, "WEBP", quality=50))
    yield Labelled("copy", "turned in its header", number, _marked(image, 6))


def _turned(number: int, picture: Picture, rng: np.random.Generator) -> Iterator[Labelled]:
    """Stored lying, shown upright; the ratio that counts is the one that is shown."""
    image = Image.fromarray(picture)
    for ratio in (0.6, 1.5, 2.4):
        width = min(image.width, int(image.height * ratio))
        shown = image.crop((0, 0, width, min(image.height, int(width / ratio))))
        drop = not MIN_ASPECT_RATIO <= shown.width / shown.height <= MAX_ASPECT_RATIO
        for orientation in (1, 6):
            kind = f"orientation {orientation}"
            yield Labelled("ratio", kind, number, _marked(shown, orientation), drop)


def _formats(number: int, picture: Picture, rng: np.random.Generator) -> Iterator[Labelled]:
    image = Image.fromarray(picture)
    grey = np.asarray(image.convert("L")).astype(np.uint16) * 257
    yield Labelled("format", "PNG", number, encoded(image, "PNG"))
    yield Labelled("format", "GIF", number, encoded(image.quantize(), "GIF"))
    yield Labelled("format", "TIFF", number, encoded(image, "TIFF"))
    yield Labelled("format", "JPEG, CMYK", number, encoded(image.convert("CMYK")))
    yield Labelled("format", "PNG, 16 bits", number, encoded(Image.fromarray(grey), "PNG"))
    whole = encoded(image)
    yield Labelled("format", "JPEG, cut", number, whole[: len(whole) // 2])


def _marked(image: Image.Image, orientation: int) -> bytes:
    """A file that shows the picture, and stores it turned as the header says."""
    exif = Image.Exif()
    exif[274] = orientation
    stored = image.transpose(Image.Transpose.ROTATE_90) if orientation == 6 else image
    return encoded(stored, exif=exif)


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """An image file; a JPEG of quality 90 unless options say otherwise."""
    out = io.BytesIO()
    image.save(out, kind, **({"quality": 90} if kind == "JPEG" else {}) | options)
    return out.getvalue()
