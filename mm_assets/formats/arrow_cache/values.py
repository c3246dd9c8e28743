"""Exact storage of Python and numpy scalars in Arrow, and of pictures as the bytes of image files."""

from __future__ import annotations

import io
import math
from datetime import UTC, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from PIL import Image

_ATTOSECONDS = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18}
# Years and months have no fixed length.
_ATTOSECONDS |= {"m": 60 * 10**18, "h": 3600 * 10**18, "D": 86_400 * 10**18, "W": 604_800 * 10**18}


def exact_types(kind: pa.DataType) -> frozenset[type]:
    """Return the Python types whose values Arrow stores exactly as ``kind``, or refuses."""
    if pa.types.is_integer(kind):
        return frozenset({int})
    if pa.types.is_floating(kind):
        return frozenset({int, float}) if kind.bit_width == 64 else frozenset({int})
    return frozenset({bool}) if pa.types.is_boolean(kind) else frozenset({str, bytes})


def stored_scalar(value: Any, kind: pa.DataType) -> Any:
    """Return a scalar as a Python value that Arrow stores as ``kind`` without a change.

    Only floats may be rounded. The buffer of a bytearray or memoryview is copied, because its owner may reuse
    it. NaT becomes None. An aware datetime becomes UTC.

    Raises:
        ValueError, TypeError, OverflowError, pa.ArrowException: The value would change, or could not be read
            back.
    """
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):
        return _time(value, kind)
    if hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, str | bytes):
        return value
    stored = pa.scalar(value, kind).as_py()
    if pa.types.is_floating(kind):
        if math.isinf(stored) and value not in (math.inf, -math.inf):
            raise ValueError(f"{value!r} is out of the range of {kind}")
        return float(value)
    if pa.types.is_temporal(kind) and type(value) is int:
        return value  # a count of the type's units
    comparable: Any = stored
    if isinstance(value, datetime):
        if isinstance(stored, datetime):
            value = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        elif pa.types.is_date(kind):
            comparable = datetime.combine(stored, time.min)
    if comparable != value:
        raise ValueError(f"{value!r} would be stored as {stored!r} in {kind}")
    return stored


def _time(value: Any, kind: pa.DataType) -> Any:
    """Return a numpy datetime or timedelta of any unit as a Python value."""
    (unit, multiple), number = np.datetime_data(value.dtype), int(value.astype(np.int64).item())
    if number == np.iinfo(np.int64).min:
        return None  # NaT
    is_moment = value.dtype.kind == "M"
    if is_moment and pa.types.is_date(kind):
        kind, target_unit = pa.date32(), "D"
    elif pa.types.is_timestamp(kind) if is_moment else pa.types.is_duration(kind):
        target_unit = kind.unit
    else:
        raise ValueError(f"{value!r} is no {kind}")
    if unit not in _ATTOSECONDS:
        raise ValueError(f"{value!r} has no unit that has a length")
    count, rest = divmod(number * multiple * _ATTOSECONDS[unit], _ATTOSECONDS[target_unit])
    if rest:
        raise ValueError(f"{value!r} is between two values of {kind}")
    return pa.scalar(count, kind).as_py()


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
    from PIL import Image  # the code location loads without it

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
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    image.load()
    return image
