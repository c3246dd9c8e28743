"""Tars of one modality each, for paired raw shards: pictures, texts with fields, and embeddings of the same
keys.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mm_assets_tests.formats.raw_tars import make_tar

Members = Sequence[tuple[str, Any]]


def png(*colour: int, width: int = 30, height: int = 20) -> bytes:
    """A picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def npy(values: Any, allow_pickle: bool = False) -> bytes:
    """An array as a file."""
    file = io.BytesIO()
    np.save(file, values, allow_pickle=allow_pickle)
    return file.getvalue()


def embedding(number: int) -> np.ndarray[Any, Any]:
    """Four numbers that no float64 literal of few digits is equal to."""
    return np.arange(4, dtype=np.float32) * np.float32(0.1) + number


def images_of(keys: Sequence[str]) -> Members:
    """Two pictures a key, before and behind its text."""
    return [(f"{key}.{at}.png", png(number, at, 7)) for number, key in enumerate(keys) for at in (0, 2)]


def texts_of(keys: Sequence[str]) -> Members:
    """A text and a json a key, keys in reverse order."""
    texts = [
        ((f"{key}.1.txt", f"text of {key}".encode()), (f"{key}.json", {"lang": "en", "words": 3}))
        for key in reversed(keys)
    ]
    return [member for pair in texts for member in pair]


def embeddings_of(keys: Sequence[str]) -> Members:
    """An array a key."""
    return [(f"{key}.emb.npy", npy(embedding(number))) for number, key in enumerate(keys)]


def make_modalities(folder: Path, shards: Mapping[str, Mapping[str, Members]]) -> str:
    """``folder/MODALITY/SHARD.tar`` for each shard and modality; returns what ``MM_RAW_SHARDS`` says of
    them.
    """
    names = dict.fromkeys(name for modalities in shards.values() for name in modalities)
    for shard, modalities in shards.items():
        for name, members in modalities.items():
            make_tar(folder / name / f"{shard}.tar", members)
    return " ".join(f"{name}={folder / name}" for name in names)
