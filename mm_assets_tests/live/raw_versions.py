"""Raw shards in two versions, for runs that replace one by the other: sound, faulty, mended, emptied; noise,
so that bytes are many.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

from tools.demo import make_shards

SHARDS = ["bad", "emptied", "mended", "noise-0", "noise-1", "pdf-00000"]
KEEPER = "noise-0"  # the first to have a sample id that others have, and the only one whose field `n` is text
_SIZES = ((256, 192), (192, 256), (300, 150))  # the upright one is filtered out


def write_version(folder: Path, version: int) -> None:
    """Write version 1 or 2 of every shard of `SHARDS`, each in one step."""
    staging = folder.with_name(f"{folder.name}-{version}")
    make_shards(staging, members=0, pdf=1, samples=5, seed=str(version))
    for name in SHARDS[:5]:
        _write(staging / f"{name}.tar", _members(name, version))
    folder.mkdir(exist_ok=True)
    for name in SHARDS:
        (staging / f"{name}.tar").replace(folder / f"{name}.tar")


def _members(name: str, version: int) -> dict[str, bytes]:
    rng = random.Random(f"{name} {version}")
    members: dict[str, bytes] = {}
    for number in range(14):
        members |= _sample(f"{name}-{number:02d}", rng, n=number if name != KEEPER else f"no {number}")
    if name.startswith("noise"):
        members |= _sample("twin", rng, n=0)
    if (name, version) in (("bad", 2), ("mended", 1)):
        members[f"{name}-03.json"] = b'{"texts": [nope' + rng.randbytes(6 << 20)
        del members[f"{name}-05.1.png"]
        members[f"{name}-07.2.png"] = members[f"{name}-07.2.png"][:-5000]
    if (name, version) == ("emptied", 2):
        return {f"{name}-00.json": b"[" + rng.randbytes(6 << 20)}
    return members


def _sample(name: str, rng: random.Random, **fields: Any) -> dict[str, bytes]:
    images = {f"{name}.{position}.png": _noise(rng) for position in (1, 2)}
    document = {"texts": [f"text of {name} {rng.random()}", None, None], "images": [None, *images], **fields}
    return {f"{name}.json": json.dumps(document).encode(), **images}


def _noise(rng: random.Random) -> bytes:
    width, height = rng.choice(_SIZES)
    out = io.BytesIO()
    Image.frombytes("RGB", (width, height), rng.randbytes(width * height * 3)).save(
        out, "PNG", compress_level=0
    )
    return out.getvalue()


def _write(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
