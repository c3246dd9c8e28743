"""Pictures made in code, as measures see them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import zxingcpp
from PIL import Image

from mm_assets.filters.measure import ImageContent
from mm_assets.formats.images import probe

Picture = npt.NDArray[Any]


def content(data: bytes, max_pixels: int = 10_000_000) -> ImageContent:
    return ImageContent(memoryview(data), probe(data), max_pixels)


def content_of(picture: Picture | Image.Image, kind: str = "PNG", **options: Any) -> ImageContent:
    """A picture in a file of its own, without loss unless options say otherwise."""
    return content(file_of(picture, kind, **options))


def file_of(picture: Picture | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    made = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    made.save(out, kind, **options)
    return out.getvalue()


def noise(height: int, width: int, seed: int = 5) -> Picture:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def scene(height: int, width: int, seed: int = 5) -> Picture:
    """Soft patches of colour with some grain, as a photograph has them."""
    rng = np.random.default_rng(seed)
    patches = Image.fromarray(rng.integers(0, 256, (9, 12, 3)).astype(np.uint8))
    grain = rng.normal(0, 3, (height, width, 1))
    soft = np.asarray(patches.resize((width, height), Image.Resampling.BICUBIC))
    return np.clip(soft + grain, 0, 255).astype(np.uint8)


def qr_code(text: str, module: int) -> Picture:
    """A QR code without a quiet zone; ``module`` is the side of its dots in pixels."""
    code = zxingcpp.create_barcode(text, zxingcpp.BarcodeFormat.QRCode)
    dots = np.array(code.to_image(scale=1, add_quiet_zones=False), np.uint8)
    return np.kron(dots, np.ones((module, module), np.uint8))


def pasted(code: Picture, height: int, width: int, top: int, left: int) -> Picture:
    """A code on a white page."""
    page = np.full((height, width), 255, np.uint8)
    page[top : top + code.shape[0], left : left + code.shape[1]] = code
    return page
