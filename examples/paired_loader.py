"""Train from modalities in separate tars: ``FOLDER/images/*.tar``, ``FOLDER/texts/*.tar``,
``FOLDER/embeddings/*.tar``.

    python examples/paired_loader.py FOLDER --seed 7 --epochs 2

Tars of the same name are joined by key. A key's items say their place in the document: ``KEY.0.jpg``,
``KEY.1.txt``, ``KEY.2.jpg``; its embedding is ``KEY.emb.npy``. On several nodes, set RANK and WORLD_SIZE
(torchrun does). docs/paired_tars.md has all about it.
"""

import argparse
import io
import time
from typing import Any

import fsspec
import numpy as np
import webdataset as wds
from PIL import Image
from torch.utils.data import DataLoader

from mm_assets import MultiModalWebDataset

MODALITIES = ("images", "texts", "embeddings")


def interleaved(sample: dict[str, Any]) -> dict[str, Any]:
    """Texts and pictures by the number in their extension (10 comes after 9), and the embedding."""
    places = {
        int(number): extension for extension in sample if (number := extension.partition(".")[0]).isdecimal()
    }
    items: list[str | Image.Image] = []
    for _, extension in sorted(places.items()):
        data = sample[extension]
        items.append(
            data.decode() if extension.endswith(".txt") else Image.open(io.BytesIO(data)).convert("RGB")
        )
    return {
        "sample_id": sample["__key__"],
        "items": items,
        "embedding": np.load(io.BytesIO(sample["emb.npy"])),
    }


def tars(folder: str) -> list[str]:
    """The tars in a folder on any file system that fsspec knows, sorted."""
    fs, path = fsspec.url_to_fs(folder)
    found = sorted(fs.glob(f"{path}/*.tar"))
    return [fs.unstrip_protocol(name) for name in found] if "://" in folder else found


def make_loader(folder: str, workers: int, batch_size: int, seed: int) -> DataLoader[Any]:
    """Tars are paired before they are split and shuffled, so neither can pair the wrong ones."""
    dataset = MultiModalWebDataset(
        {name: tars(f"{folder}/{name}") for name in MODALITIES},
        shardshuffle=100,
        detshuffle=True,  # another order in each pass, the same in each run with this seed
        seed=seed,
        nodesplitter=wds.split_by_node,
        missing_key_policy="error",  # "skip" leaves out what is not in all modalities, and says so
        empty_check=False,  # there may be more workers than tars
    ).map(interleaved)
    # Persistent workers: new ones would begin with the order of the first pass again.
    return DataLoader(
        dataset, batch_size=batch_size, num_workers=workers, collate_fn=list, persistent_workers=workers > 0
    )


def train_step(samples: list[dict[str, Any]]) -> None:
    """Stands for your model."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="path or URL")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args(arguments)

    loader = make_loader(options.folder, options.workers, options.batch_size, options.seed)
    for epoch in range(options.epochs):
        count, started = 0, time.perf_counter()
        for samples in loader:
            train_step(samples)
            count += len(samples)
        print(f"epoch {epoch}: {count} samples, {count / (time.perf_counter() - started):.0f} samples/s")


if __name__ == "__main__":
    main()
