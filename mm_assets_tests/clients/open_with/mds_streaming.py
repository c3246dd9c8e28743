"""mosaicml-streaming: every sample of a folder of MDS shards, by its index."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from normal_form import Document, collected, from_payload, report

# Its data sets of pictures need torchvision, which is made for the torch with CUDA; they are not opened here.
sys.modules["streaming.vision"] = ModuleType("streaming.vision")

from streaming import StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402


def images_of(sample: dict[str, Any]) -> dict[str, bytes]:
    names = [name for name in sample["json"]["images"] if name is not None]
    found: dict[str, bytes] = {}
    at = 0
    for name, size in zip(names, sample["image_sizes"], strict=True):
        found[name] = sample["image_bytes"][at : at + size]
        at += size
    assert at == len(sample["image_bytes"])
    return found


def documents(folder: Path) -> Iterator[tuple[str, Document]]:
    clean_stale_shared_memory()
    with tempfile.TemporaryDirectory() as cache:
        dataset = StreamingDataset(
            remote=str(folder), local=cache, shuffle=True, batch_size=1, num_canonical_nodes=1
        )
        for sample in dataset:
            yield from_payload(sample["json"], images_of(sample).__getitem__)


def main(folder: Path) -> None:
    report(collected(documents(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
