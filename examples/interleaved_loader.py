"""Train from any output with mm_assets.train: tars, an Arrow cache, a Lance table, Parquet, a training set.

    python examples/interleaved_loader.py STORAGE/webdataset --seed 7 --save run/data --stop-after 1000
    python examples/interleaved_loader.py STORAGE/webdataset --seed 7 --resume run/data     # exactly the rest
    python examples/interleaved_loader.py STORAGE/webdataset s3://bucket/other --weights 3 1
    python examples/interleaved_loader.py out/training --split train

On several nodes start it once on each, with RANK and WORLD_SIZE set, as torchrun does. Each rank saves its
state where it saves the model; a resumed run may have other numbers of ranks and workers.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from PIL import Image

from mm_assets.train import InterleavedDataset, Loader, Mixture


def interleaved(sample: dict[str, Any]) -> dict[str, Any]:
    """Texts and pictures of a sample in its order. It also has ``metadata``, and so has each of its items."""
    items: list[str | Image.Image] = []
    for item in sample["items"]:
        content = item["text"] if item["modality"] == "text" else item["image"]
        if content is not None:  # an image that could not be had
            items.append(content)
    return {"sample_id": sample["sample_id"], "items": items}


def make_loader(options: argparse.Namespace) -> Loader:
    """Pictures are decoded in the workers, which call `interleaved`, too."""
    datasets = [
        InterleavedDataset(
            path,
            split=options.split,
            shuffle=options.seed is not None,
            seed=options.seed or 0,
            decode="pil",
            transform=interleaved,
        )
        for path in options.paths
    ]
    dataset = Mixture(datasets, options.weights) if options.weights else datasets[0]
    return dataset.loader(options.batch_size, options.workers)


def train_step(samples: list[dict[str, Any]]) -> None:
    """Stands for your model."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", help="folders or URLs; several with --weights")
    parser.add_argument("--weights", type=float, nargs="*", help="shares of the datasets")
    parser.add_argument("--split", help="of a training set, such as train")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, help="shuffle; without it, samples come as they lie")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="folder with the states of all ranks")
    parser.add_argument("--save", type=Path, help="folder for the state of this rank")
    parser.add_argument("--stop-after", type=int, help="samples of this rank, in whole batches")
    options = parser.parse_args(arguments)

    try:
        loader = make_loader(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if options.resume:
        loader.load_state_dict([json.loads(file.read_text()) for file in options.resume.glob("*.json")])
    while loader.dataset.epoch < options.epochs:
        count, started = 0, time.perf_counter()
        for samples in loader:
            train_step(samples)
            count += len(samples)
            if options.stop_after is not None and count >= options.stop_after:
                break
        print(f"{count} samples, {count / (time.perf_counter() - started):.0f} samples/s")
        if options.stop_after is not None:
            break
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        file = options.save / f"rank-{loader.dataset.rank}.json"
        file.write_text(json.dumps(loader.state_dict()))


if __name__ == "__main__":
    main()
