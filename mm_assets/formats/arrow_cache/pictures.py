"""Pictures as the bytes of an image file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# Saved again in its own format a picture must not lose more: Pillow would take JPEG quality 75 and lossy
# WebP.
_AS_IT_WAS: dict[str, dict[str, Any]] = {"JPEG": {"quality": "keep"}, "WEBP": {"lossless": True}}
_WITH_EXIF = ("JPEG", "PNG", "WEBP")
_AS_PNG = ("RGBA", "LA", "PA", "P")


def encode_image(image: Any) -> bytes:
    """The bytes of an image file.

    Bytes are taken as they are, and a path's file as it is. A PIL image that was opened from a file is saved
    in the file's format (a JPEG with its own quantization tables), with its EXIF data; one with alpha, a
    palette or no format as PNG. A numpy array becomes a PNG. Raises ``TypeError`` for anything else, and
    ``ValueError`` for a picture that Pillow cannot save so.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | Path):
        return Path(image).read_bytes()
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        raise TypeError(f"no picture: {type(image).__name__}")
    kind = image.format if image.format is not None and image.mode not in _AS_PNG else "PNG"
    options = dict(_AS_IT_WAS.get(kind, {}))
    if kind in _WITH_EXIF and image.info.get("exif"):
        options["exif"] = image.info["exif"]
    file = io.BytesIO()
    try:
        image.save(file, format=kind, **options)
    except (
        KeyError,
        OSError,
        SyntaxError,
        EOFError,
    ) as error:  # a format it only reads; a mode the format lacks; a damaged file
        raise ValueError(f"a picture of mode {image.mode} cannot be saved as {kind}: {error}") from error
    return file.getvalue()


def decode_image(data: bytes) -> Image.Image:
    """The picture in the bytes of an image file, decoded. Raises Pillow's errors."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image
