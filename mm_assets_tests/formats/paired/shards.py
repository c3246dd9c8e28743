"""Small shards in separate tars, for tests."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mm_assets.formats import MultiModalWebDataset
from mm_assets_tests.formats.raw_tars import make_tar

EXTENSIONS = {"images": "jpg", "embeddings": "emb.npy", "captions": "txt"}


def payload(modality: str, key: str) -> bytes:
    return f"{modality} of {key}".encode()


def write_shard(root: Path, modality: str, keys: Iterable[str], shard: str = "shard_0000") -> str:
    """A tar of one member a key; its path."""
    members = [(f"{key}.{EXTENSIONS[modality]}", payload(modality, key)) for key in keys]
    return str(make_tar(root / modality / f"{shard}.tar", members))


def write_pair(root: Path, **keys: Iterable[str]) -> dict[str, str]:
    """One shard of each modality with these keys; modalities to URLs."""
    return {modality: write_shard(root, modality, found) for modality, found in keys.items()}


def write_shards(
    root: Path, count: int, per_shard: int = 3, modalities: Sequence[str] = ("images", "embeddings")
) -> dict[str, str]:
    """``count`` aligned shards of each modality; modalities to brace patterns."""
    for at in range(count):
        for modality in modalities:
            write_shard(root, modality, (f"s{at:04d}_{n}" for n in range(per_shard)), f"shard_{at:04d}")
    return {modality: f"{root / modality}/shard_{{0000..{count - 1:04d}}}.tar" for modality in modalities}


def write_pictures(root: Path, count: int, sizes: Sequence[tuple[int, int]] = ((8, 8),)) -> dict[str, str]:
    """Aligned shards of two real pictures, arrays and captions each; modalities to brace patterns."""
    for at in range(count):
        members: dict[str, list[tuple[str, Any]]] = {name: [] for name in EXTENSIONS}
        for n in range(2):
            key, number = f"sample_{at:04d}_{n:04d}", at * 2 + n
            encoded = io.BytesIO()
            Image.new("RGB", sizes[number % len(sizes)], (number % 256, 0, 0)).save(encoded, "JPEG")
            array = io.BytesIO()
            np.save(array, np.full(4, number, dtype=np.float32))
            members["images"].append((f"{key}.jpg", encoded.getvalue()))
            members["embeddings"].append((f"{key}.emb.npy", array.getvalue()))
            members["captions"].append((f"{key}.txt", f"caption {number}".encode()))
        for name, found in members.items():
            make_tar(root / name / f"shard_{at:04d}.tar", found)
    return {name: f"{root / name}/shard_{{0000..{count - 1:04d}}}.tar" for name in EXTENSIONS}


def paired(modalities: dict[str, Any], **arguments: Any) -> MultiModalWebDataset:
    """In the order of the shards, unless told otherwise."""
    return MultiModalWebDataset(modalities, **{"shardshuffle": False, **arguments})


def keys_of(samples: Iterable[dict[str, Any]]) -> list[str]:
    return [sample["__key__"] for sample in samples]
