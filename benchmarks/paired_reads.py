"""Tars of two modalities, and the same samples in one set of tars; three ways to read them."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Work

_SHARDS = 4
_EXTENSIONS = {"images": "jpg", "embeddings": "emb.npy"}
_SEED = 20_262


@dataclass(frozen=True)
class Sizes:
    """How many samples in all, and the bytes of a sample's members by modality."""

    samples: int
    images: int
    embeddings: int

    @property
    def name(self) -> str:
        return f"paired-{self.samples}-{self.images}-{self.embeddings}"


@dataclass(frozen=True)
class Tars:
    """Paths by modality, and of the tars that have both."""

    modalities: dict[str, list[str]]
    together: list[str]


def make_tars(folder: Path, sizes: Sizes) -> Tars:
    """The tars of these sizes below ``folder``, made unless they are there."""
    target = folder / sizes.name
    if not target.exists():
        made = folder / f"{sizes.name}.unfinished"
        shutil.rmtree(made, ignore_errors=True)
        for shard in range(_SHARDS):
            members = _members(sizes, shard)
            for modality, extension in _EXTENSIONS.items():
                _write(
                    made / modality / f"{shard:04d}.tar",
                    [one for one in members if one[0].endswith(extension)],
                )
            _write(made / "together" / f"{shard:04d}.tar", members)
        made.rename(target)
    paths = {name: sorted(map(str, (target / name).glob("*.tar"))) for name in (*_EXTENSIONS, "together")}
    return Tars({name: paths[name] for name in _EXTENSIONS}, paths["together"])


def prepare_raw(files: Sequence[str]) -> Work:
    """Read files from end to end."""
    block = bytearray(1 << 20)

    def work() -> dict[str, Any]:
        total = 0
        for name in files:
            with open(name, "rb", buffering=0) as file:
                while count := file.readinto(block):
                    total += count
        return {"nbytes": total}

    return work


def prepare_paired(modalities: dict[str, list[str]]) -> Work:
    """Read a pass of `MultiModalWebDataset`."""
    from mm_assets import MultiModalWebDataset

    return _pass_of(lambda: MultiModalWebDataset(modalities, shardshuffle=False, missing_key_policy="error"))


def prepare_plain(files: Sequence[str]) -> Work:
    """Read a pass of `webdataset.WebDataset`."""
    import webdataset as wds

    return _pass_of(lambda: wds.WebDataset(list(files), shardshuffle=False))


def _pass_of(dataset: Callable[[], Iterable[dict[str, Any]]]) -> Work:
    def work() -> dict[str, Any]:
        samples = payload = 0
        for sample in dataset():
            samples += 1
            payload += len(sample["jpg"]) + len(sample["emb.npy"])
        return {"samples": samples, "payload": payload}

    return work


def _members(sizes: Sizes, shard: int) -> list[tuple[str, bytes]]:
    rng = np.random.default_rng([_SEED, shard])
    members = []
    for number in range(sizes.samples // _SHARDS):
        for modality, extension in _EXTENSIONS.items():
            members.append((f"{shard:04d}_{number:06d}.{extension}", rng.bytes(getattr(sizes, modality))))
    return members


def _write(path: Path, members: Sequence[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
