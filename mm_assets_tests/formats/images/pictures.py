"""Small pictures of every kind a raw shard may hold. Same number, same bytes (for one build of Pillow)."""

import random
from collections.abc import Callable
from io import BytesIO

from PIL import Image


def _pattern(number: int, mode: str = "RGB") -> Image.Image:
    pick = random.Random(number)
    size = (9 + pick.randrange(24), 9 + pick.randrange(24))
    bands = {"RGB": 3, "RGBA": 4, "CMYK": 4, "L": 1}[mode]
    return Image.frombytes(mode, size, pick.randbytes(size[0] * size[1] * bands))


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    out = BytesIO()
    image.save(out, format=kind, **options)
    return out.getvalue()


def _turned_jpeg(number: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: stored lying, to be shown upright
    return _saved(_pattern(number), "JPEG", exif=exif)


def _deep_png(number: int) -> bytes:
    width, height = 11 + number % 7, 13
    samples = random.Random(number).randbytes(width * height * 2)
    return _saved(Image.frombytes("I;16", (width, height), samples), "PNG")


def _moving_gif(number: int) -> bytes:
    first, second = _pattern(number).quantize(16), _pattern(number).rotate(180).quantize(16)
    return _saved(first, "GIF", save_all=True, append_images=[second], duration=90)


# (extension in the raw shard, maker); the spellings differ on purpose
KINDS: tuple[tuple[str, Callable[[int], bytes]], ...] = (
    ("png", lambda n: _saved(_pattern(n), "PNG")),
    ("jpg", lambda n: _saved(_pattern(n), "JPEG", quality=90)),
    ("webp", lambda n: _saved(_pattern(n, "RGBA"), "WEBP", lossless=True)),
    ("gif", _moving_gif),
    ("bmp", lambda n: _saved(_pattern(n), "BMP")),
    ("tiff", lambda n: _saved(_pattern(n), "TIFF")),
    ("png", _deep_png),
    ("jpeg", lambda n: _saved(_pattern(n, "CMYK"), "JPEG", quality=90)),
    ("tif", lambda n: _saved(_pattern(n), "TIFF", compression="jpeg", quality=90)),
    ("JPG", _turned_jpeg),
    ("png", lambda n: _saved(_pattern(n).quantize(7), "PNG", transparency=0)),
    ("tiff", lambda n: _saved(_pattern(n, "L"), "TIFF", compression="tiff_lzw")),
    ("png", lambda n: _saved(_pattern(n, "L").convert("1"), "PNG")),
)


def picture(number: int) -> tuple[str, bytes]:
    """Extension and bytes of picture ``number``; kinds go round, contents never repeat."""
    extension, make = KINDS[number % len(KINDS)]
    return extension, make(number)
