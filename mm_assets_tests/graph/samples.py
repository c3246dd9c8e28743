"""Samples of one text and one image, as members of a raw shard."""

from __future__ import annotations

import json
from typing import Any

from mm_assets_tests.formats.images.pictures import picture

PNG = picture(0)[1]


def document(sample: str, **fields: Any) -> bytes:
    return json.dumps(
        {"texts": [f"text of {sample}", None], "images": [None, f"{sample}.1.png"], "n": 1, **fields}
    ).encode()


def samples(count: int, prefix: str = "s") -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for number in range(count):
        name = f"{prefix}{number:03d}"
        members |= {f"{name}.json": document(name), f"{name}.1.png": PNG}
    return members
