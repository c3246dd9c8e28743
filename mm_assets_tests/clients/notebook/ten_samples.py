"""One raw shard of ten documents whose images carry what a matching step said of them (``nv_*``,
``match_*``).
"""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

PER_IMAGE = (
    "nv_image_name",
    "nv_width",
    "nv_height",
    "nv_img_byte_offset",
    "nv_img_byte_size",
    "match_status",
    "match_tier",
)
PER_TEXT = ("text_lang",)
DOCUMENTS, IMAGES = 10, 19
_KINDS = (("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"), ("gif", "GIF"), ("tiff", "TIFF"), ("bmp", "BMP"))
_SIZES = ((480, 420), (400, 400), (399, 640), (64, 48), (120, 500))


def _picture(number: int) -> tuple[str, bytes, tuple[int, int]]:
    extension, kind = _KINDS[number % len(_KINDS)]
    size = _SIZES[number % len(_SIZES)] if kind not in ("TIFF", "BMP") else (40 + number, 30)
    ramp = Image.linear_gradient("L").rotate(number * 17).resize(size)
    image = Image.merge("RGB", (ramp, ramp.point(lambda value: 255 - value), ramp))
    out = io.BytesIO()
    image.save(out, format=kind)
    return extension, out.getvalue(), size


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Add a member; where its data begins."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
    return int(tar.offset) - -(-len(data) // 512) * 512


def make_ten_samples(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    with tarfile.open(root / "shard-00000.tar", "w") as tar:
        for document in range(DOCUMENTS):
            tokens: list[str | None] = []
            texts: list[str | None] = []
            items: list[dict[str, Any]] = []
            for position in range(3 + document % 4):
                if position % 2 == 0:  # text and image take turns
                    texts.append(f"paragraph {position} of document {document}, é")
                    tokens.append(None)
                    continue
                extension, data, (width, height) = _picture(number)
                name = f"{document:04d}_{position}.{extension}"
                items.append(
                    {
                        "nv_image_name": name,
                        "nv_width": width,
                        "nv_height": height,
                        "nv_img_byte_offset": _add(tar, name, data),
                        "nv_img_byte_size": len(data),
                        "match_status": "matched",
                        "match_tier": ("exact", "near")[number % 2],
                    }
                )
                texts.append(None)
                tokens.append(name)
                number += 1
            payload = {
                "sample_id": f"urn:doc:{document:04d}",
                "texts": texts,
                "images": tokens,
                "url": f"https://ex.com/{document}",
                **{name: [item[name] for item in items] for name in PER_IMAGE},
                "text_lang": ["en" for text in texts if text is not None],
            }
            _add(tar, f"{document:04d}.json", json.dumps(payload).encode())
    return root
