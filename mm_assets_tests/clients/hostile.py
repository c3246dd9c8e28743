"""Raw MINT-1T-style shards (one image member an image) with everything that has broken a client before.

Left out because a client itself cannot carry it: integers beyond 64 bits and floats inside values of mixed
shape (Hugging Face's ``json`` type), more than one document with the same id (Energon).
"""

import io
import json
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from mm_assets_tests.formats.images.pictures import picture

ID_FIELD = "sample_id"
PER_IMAGE = ("img_caption", "img_width")
PER_TEXT = ("lang",)

LONG = "long/" + "x" * 295
SHARDS: dict[str, tuple[str, ...]] = {
    "shard-00000.tar": (
        "https://ex.com/doc.v0.1?q=ü",
        "a/../b",
        LONG,
        "=" + sha256(LONG.encode()).hexdigest(),  # spells the key of the id above
        sha256(LONG.encode()).hexdigest(),
        ".",
        "..",
        "__meta__",
        "__init__.py",
        "sp ace",
        "%2E",
        "-x",
    ),
    "sub dir/mint.test_A:1.tar": (
        "_",
        "~t",
        "=x&y#z",
        "{a,b}[c]*?",
        "tab\tline\nquote\"'back\\nul\0end",
        "😀🧭",
        "漢" * 40,
        "trailing.",
        "A",
        "a",
    ),
    "__week#7,{a,b}[1]?é.tar": (
        "caf\u00e9",
        "cafe\u0301",
        "k" * 80,
        "k" * 81,
        "",
        "0",
        "null",
        "x.json",
        "last",
    ),
    "empty.tar": (),
}

_TEXTS = ("plain", "", "ünï ✓ 漢字", "two\nlines\t", " ", "null", '{"a": 1}', "\u2028 \u0001", "x" * 4000)


def _positions(number: int) -> tuple[list[int | None], list[int | None]]:
    """Which positions of texts and images hold something (1) or null (None), by the number of the
    document.
    """
    if number == 0:  # as many images as text between them
        return [1, None] * 18, [None, 1] * 18
    if number == 1:  # a long gap
        return [1] + [None] * 39, [None] * 39 + [1]
    if number == 2:  # nothing but the metadata
        return [], []
    if number == 3:  # lists of nulls only
        return [None, None], [None, None, None]
    if number == 4:  # text and image at the same places
        return [1, 1, 1], [1, 1, 1]
    if number == 5:  # no text
        return [None] * 4, [1, 1, 1, 1]
    if number == 6:  # no image, trailing nulls
        return [1, 1, None, None], [None] * 4
    texts = [1 if (position + number) % 3 else None for position in range(2 + number % 5)]
    images = [1 if (position + number) % 2 else None for position in range(1 + number % 9)]
    return texts, images


def _fields(number: int, shard: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "url": f"https://ex.com/{number}?ü=1&b",
        "big": 2**53 + 1 + number,
        "score": (float("nan"), 0.5, 1, -0.25)[number % 4],
        "third": 1 / 3,
        "tiny": 5e-324,
        "flag": bool(number % 2),
        "when": "2024-05-01T00:00:00.000001+02:00",
        "tags": ["a", "ü", ""][: number % 4],
        "nested": ({"a": [1, "x", None, {"b": True}], "ü": "é"}, [1, [2, ["3"]]], "text", 7)[number % 4],
        "drift": number if shard.startswith("shard") else f"n{number}",  # another type in another shard
        "nothing": None,
    }
    if number % 3 == 0:
        fields["seldom"] = "here"
    if number % 3 == 1:
        fields["seldom"] = None
    return fields


def _documents() -> Iterator[tuple[str, str, dict[str, Any], list[tuple[str, bytes]]]]:
    """(shard, key of the raw members, json payload, image members) for every document."""
    numbers, pictures = count(), count()
    for shard, ids in SHARDS.items():
        for sample_id, number in zip(ids, numbers, strict=False):
            key = f"docs/v1.2/{number:06d}" if shard.startswith("sub") else f"{number:06d}"
            texts, images = _positions(number)
            members: list[tuple[str, bytes]] = []
            tokens: list[str | None] = []
            for position, present in enumerate(images):
                if present is None:
                    tokens.append(None)
                    continue
                extension, data = picture(next(pictures))
                tokens.append(f"{key}.img_{position}.{extension}")
                members.append((tokens[-1] or "", data))
            payload: dict[str, Any] = {
                ID_FIELD: sample_id,
                "texts": [
                    None if t is None else _TEXTS[(number + i) % len(_TEXTS)] for i, t in enumerate(texts)
                ],
                "images": tokens,
                "img_caption": [None if i % 3 == 2 else f"caption {i} é" for i in range(len(members))],
                "img_width": [100 + i for i in range(len(members))],
                "lang": ["en" if i % 2 else "漢" for i in range(sum(t is not None for t in texts))],
                **_fields(number, shard),
            }
            if sample_id == "last":
                payload["late"] = {"first seen": "in the last document"}
            yield shard, key, payload, members


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def make_hostile(root: Path) -> Path:
    """Write the shards below ``root``.

    The order of members differs from shard to shard, as it does in the wild.
    """
    for shard in SHARDS:
        path = root / shard
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = [(key, payload, members) for name, key, payload, members in _documents() if name == shard]
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            jsons = [
                (f"{key}.{'JSON' if shard.startswith('__') else 'json'}", json.dumps(payload).encode())
                for key, payload, _ in mine
            ]
            if shard.startswith("shard"):  # document by document, json first
                for (name, data), (_, _, members) in zip(jsons, mine, strict=True):
                    _add(tar, name, data)
                    for member in members:
                        _add(tar, *member)
            else:  # all images in reverse, then all jsons
                for _, _, members in reversed(mine):
                    for member in reversed(members):
                        _add(tar, *member)
                for name, data in jsons:
                    _add(tar, name, data)
    return root
