"""Train from the Arrow cache: samples by number or id, in any order, at the speed of memory.

    python examples/arrow_cache_loader.py STORAGE/arrow_cache --seed 7 --epochs 2
    python examples/arrow_cache_loader.py STORAGE/arrow_cache --sample 0a1b2c

The files are mapped, so all workers of a machine share one copy of them in its memory. On several nodes, set
RANK and WORLD_SIZE (torchrun does): each has its share of every epoch.
"""

import argparse
import io
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader

from mm_assets import InterleavedArrowDataset


class Shuffled:
    """This node's share of all numbers below ``length``, each on one node only, in another order in each
    epoch.

    Nodes may get one number more or less. Where all need as many, torch's DistributedSampler gives some
    twice.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.epoch = 0
        self._length, self._seed = length, seed
        self._rank, self._nodes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if self._rank >= length:  # the others would wait for it for ever
            raise SystemExit(
                f"rank {self._rank} of {self._nodes} has none of the {length} samples: start fewer ranks"
            )

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self._length, generator=torch.Generator().manual_seed(self._seed + self.epoch))
        return iter(order[self._rank :: self._nodes].tolist())

    def __len__(self) -> int:
        return len(range(self._rank, self._length, self._nodes))


def interleaved(sample: dict[str, Any]) -> dict[str, Any]:
    """Texts and pictures of a sample in its order. It also has ``metadata``, and so has each of its items."""
    items: list[str | Image.Image] = []
    for item in sample["items"]:
        if item["modality"] == "text":
            items.append(item["text"])
        elif item["image"] is not None:  # an image that could not be had has no bytes
            items.append(Image.open(io.BytesIO(item["image"])).convert("RGB"))
    return {"sample_id": sample["sample_id"], "items": items}


def collate(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs in the workers, so pictures are decoded there."""
    return list(map(interleaved, samples))


def train_step(samples: list[dict[str, Any]]) -> None:
    """Stands for your model."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="of all caches, or of one, on a disk of this machine")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--sample", help="print the sample of this id instead")
    options = parser.parse_args(arguments)

    dataset = InterleavedArrowDataset(options.folder)
    if options.sample is not None:
        print(interleaved(dataset[dataset.index(options.sample)]))
        return
    print(f"{len(dataset)} samples in all")
    sampler = Shuffled(len(dataset), options.seed)
    loader = DataLoader(
        dataset,
        batch_size=options.batch_size,
        sampler=sampler,
        num_workers=options.workers,
        collate_fn=collate,
        persistent_workers=options.workers
        > 0,  # a worker reads a shard for its digest once: new ones would do it in each epoch
    )
    for epoch in range(options.epochs):
        sampler.epoch = epoch
        count, started = 0, time.perf_counter()
        for samples in loader:
            train_step(samples)
            count += len(samples)
        print(f"epoch {epoch}: {count} samples, {count / (time.perf_counter() - started):.0f} samples/s")


if __name__ == "__main__":
    main()
