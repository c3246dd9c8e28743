"""A storage root with a sample that tries what a page or a terminal should not do, and its raw shards."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from mm_assets.accounting import CURATED, FILTERED
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.quarantine import publish_quarantine, quarantine_table
from mm_assets.filters.scores import score_table
from mm_assets.formats.parquet import publish_table
from mm_assets_tests.cli.documents import GOOD, WIDE, sample
from mm_assets_tests.cli.storage_root import fill
from mm_assets_tests.formats.raw_tars import make_tar

HOSTILE_ID = "<script>alert('id')</script>\x1b[31m"
HOSTILE_TEXT = "<script>alert(1)</script> & \x1b[2J\x07 \u202egnp.exe\nsecond <b>line</b>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(2)"><script>alert(3)</script></svg>'


def bomb() -> bytes:
    """A PNG of 60,000x60,000 pixels in a few hundred bytes, whose header is sound."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 1, 0, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(100)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def noise(side: int, kind: str = "PNG") -> bytes:
    """An image that no format makes small."""
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def hostile_sample() -> list[tuple[str, Any]]:
    """Text, an image of 3 MB, a TIFF, a bomb, right-to-left text, and an image that is too wide."""
    images: dict[str, bytes] = {"large.png": noise(1000), "b.tiff": noise(40, "TIFF"), "wide.png": WIDE}
    payload = {
        "sample_id": HOSTILE_ID,
        "texts": [HOSTILE_TEXT, None, None, None, "שלום עולם, זה טקסט מימין לשמאל"],
        "images": [None, *images, None],
        "<img src=x onerror=alert(4)>": "</td><script>alert(5)</script>",
    }
    return [("hostile.json", payload), *images.items()]


def fill_hostile(root: Path) -> Path:
    """Make the raw shard below ``root``, and all outputs in ``root/storage``; returns the storage root.

    The sample ``broken`` has an SVG for an image, and ``bad`` is no JSON.
    """
    members = [
        *hostile_sample(),
        *sample("two", GOOD, url="https://x/two"),
        *sample("broken", SVG),
        *sample("bomb", bomb()),
        ("bad.json", b"{nope"),
    ]
    tar = make_tar(root / "raw" / "a.tar", members)
    storage = str(root / "storage")
    fill(storage, str(tar.parent), policy="drop_row")
    losses = Ledger(storage).items(CURATED.asset, "a")
    publish_quarantine(
        f"{storage}/quarantine/a.parquet", quarantine_table(losses, [str(tar)], [str(tar.parent)])
    )
    publish_table(f"{storage}/scores/a.parquet", score_table(pq.read_table(CURATED.uri(storage, "a"))))
    assert Path(FILTERED.uri(storage, "a")).is_file()
    return Path(storage)
