"""Pictures as the bytes of image files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# Options to save a picture again in its own format without more loss. Pillow's defaults are JPEG quality 75
# and lossy WebP.
_LOSSLESS_OPTIONS: dict[str, dict[str, Any]] = {"JPEG": {"quality": "keep"}, "WEBP": {"lossless": True}}
_WITH_EXIF = ("JPEG", "PNG", "WEBP")
_AS_PNG = ("RGBA", "LA", "PA", "P")


def encode_image(image: Any) -> bytes:
    """Return the bytes of an image file.

    Bytes and the file of a path are taken as they are. A PIL image that was opened from a file is saved in
    the file's format (a JPEG with its own quantization tables), with its EXIF data. A PIL image with alpha, a
    palette or no format is saved as PNG. A numpy array becomes a PNG.

    Raises:
        TypeError: The value is something else.
        ValueError: Pillow cannot save the picture in that format.
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
    options = dict(_LOSSLESS_OPTIONS.get(kind, {}))
    if kind in _WITH_EXIF and image.info.get("exif"):
        options["exif"] = image.info["exif"]
    file = io.BytesIO()
    try:
        image.save(file, format=kind, **options)
    # A format that Pillow only reads; a mode that the format lacks; a damaged file.
    except (KeyError, OSError, SyntaxError, EOFError) as error:
        raise ValueError(f"a picture of mode {image.mode} cannot be saved as {kind}: {error}") from error
    return file.getvalue()


def decode_image(data: bytes) -> Image.Image:
    """Return the decoded picture of an image file's bytes; raise Pillow's errors."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image
