"""Documents of an image and a text, as members of a raw shard."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image

from mm_assets_tests.formats.images.pictures import picture

PNG = picture(0)[1]


def document(name: str, **fields: Any) -> list[tuple[str, Any]]:
    payload = {
        "texts": [f"text of {name}", None],
        "images": [None, f"{name}.png"],
        "lang": ["en"],
        "url": f"https://x/{name}",
        **fields,
    }
    return [(f"{name}.json", payload), (f"{name}.png", PNG)]


def image(width: int, height: int = 20) -> bytes:
    out = BytesIO()
    Image.frombytes("L", (width, height), bytes(width * height)).save(out, format="PNG")
    return out.getvalue()


GOOD, WIDE = image(30), image(70)


def sample(name: str, good: bytes = GOOD, **fields: Any) -> list[tuple[str, Any]]:
    """A text, an image that passes the filter, and one that is too wide."""
    payload = {
        "texts": [f"text of {name}", None, None],
        "images": [None, f"{name}.1.png", f"{name}.2.png"],
        **fields,
    }
    return [(f"{name}.json", payload), (f"{name}.1.png", good), (f"{name}.2.png", WIDE)]
