"""Train from the tars of ``final_tars`` with plain webdataset: every sample exactly once an epoch, and
resumable.

    python examples/webdataset_loader.py STORAGE/webdataset --seed 7 --position run/position --stop-after 1000
    python examples/webdataset_loader.py STORAGE/webdataset --seed 7 --position run/position      # exactly
    the rest

On several nodes start it once on each, with RANK and WORLD_SIZE set (torchrun does) and one ``--position``
folder for all.

The position says of each shard which of its samples the training loop has had. It is counted where samples
are used, so what workers have read ahead is not lost. It holds for any number of workers and nodes: a run may
resume on other ones.
"""

import argparse
import io
import json
import os
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import webdataset as wds
from PIL import Image
from torch.utils.data import DataLoader

SHUFFLE_BUFFER = 100  # samples
Position = dict[
    str, dict[str, Any]
]  # shard: {"before": its first samples, so many of them, "beyond": numbers of others}


def has_had(position: Position, shard: str, number: int) -> bool:
    """Whether sample ``number`` of a shard is behind us."""
    seen = position.get(shard)
    return seen is not None and (number < seen["before"] or number in seen["beyond"])


def advance(position: Position, shard: str, number: int) -> None:
    """Note a sample.

    A shuffle buffer brings some forward: they wait in ``beyond`` until those before them have come.
    """
    seen = position.setdefault(shard, {"before": 0, "beyond": []})
    seen["beyond"].append(number)
    while seen["before"] in seen["beyond"]:
        seen["beyond"].remove(seen["before"])
        seen["before"] += 1


def load_position(folder: Path, epoch: int) -> Position:
    """What all nodes together had of this epoch.

    Each file knows what the files of earlier runs said: the one that is ahead is right.
    """
    position: Position = {}
    for file in sorted(folder.glob(f"epoch-{epoch}-rank-*.json")):
        for shard, seen in json.loads(file.read_text()).items():
            known = position.get(shard, {"before": 0, "beyond": []})
            position[shard] = max(known, seen, key=lambda one: one["before"] + len(one["beyond"]))
    return position


def save_position(folder: Path, epoch: int, position: Position) -> None:
    """Each node has a file of its own for each epoch, so that one may still be finished when a later one has
    begun.

    Do this where you save the model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"epoch-{epoch}-rank-{os.environ.get('RANK', '0')}.json"
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(position))
    temporary.replace(file)


def unfinished(
    shards: Iterable[dict[str, Any]], sizes: dict[str, int], position: Position
) -> Iterator[dict[str, Any]]:
    """Stage: leaves out shards of which nothing is left. They need not be opened."""
    for shard in shards:
        name = os.path.basename(shard["url"])
        if position.get(name, {"before": 0})["before"] < sizes[name]:
            yield shard


def opened(shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Stage: opens shards on any file system that fsspec knows. webdataset itself opens no ``s3://``."""
    for shard in shards:
        with fsspec.open(shard["url"]) as stream:
            yield {**shard, "stream": stream}


def unseen(samples: Iterable[dict[str, Any]], position: Position) -> Iterator[dict[str, Any]]:
    """Stage: numbers the samples of each shard, and leaves out those that are behind us."""
    url, number = None, 0
    for sample in samples:
        number = number + 1 if sample["__url__"] == url else 0
        url = sample["__url__"]
        shard = os.path.basename(url)
        if not has_had(position, shard, number):
            yield {**sample, "shard": shard, "number": number}


def interleaved(sample: dict[str, Any]) -> dict[str, Any]:
    """Texts and pictures of a sample in the order of the document.

    ``images[i]`` names the member that has the picture.
    """
    document = json.loads(sample["json"])
    items: list[str | Image.Image] = []
    for text, image in zip(document["texts"], document["images"], strict=True):
        if text is not None:
            items.append(text)
        if image is not None:
            items.append(Image.open(io.BytesIO(sample[image])).convert("RGB"))
    return {
        "sample_id": document["sample_id"],
        "items": items,
        "shard": sample["shard"],
        "number": sample["number"],
    }


def make_loader(
    folder: str, position: Position, workers: int, batch_size: int, seed: str | None
) -> DataLoader[Any]:
    """Shards are split over nodes and workers before the position is looked at: so they are split alike,
    however far each of them is.
    """
    with fsspec.open(f"{folder}/index.json") as file:
        index = json.load(file)
    sizes = {shard["url"]: shard["nsamples"] for shard in index["shardlist"]}
    rank, ranks, *_ = wds.utils.pytorch_worker_info()
    if rank >= len(sizes):  # the others would wait for it for ever
        raise SystemExit(
            f"rank {rank} of {ranks} has none of the {len(sizes)} tars: "
            "start no more ranks than there are tars, or make more, smaller ones"
        )
    dataset = wds.DataPipeline(
        wds.SimpleShardList([f"{folder}/{name}" for name in sizes], seed=seed),
        wds.split_by_node,
        wds.split_by_worker,
        partial(unfinished, sizes=sizes, position=position),
        opened,
        wds.tariterators.tar_file_expander,
        wds.tariterators.group_by_keys,
        partial(unseen, position=position),
        None if seed is None else wds.shuffle(SHUFFLE_BUFFER, seed=seed),
        wds.map(interleaved),
    )
    return DataLoader(dataset, batch_size=batch_size, num_workers=workers, collate_fn=list)


def train_step(samples: list[dict[str, Any]]) -> None:
    """Stands for your model."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="path or URL of the folder with the tars and their index.json")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, help="shuffle shards and samples")
    parser.add_argument("--epoch", type=int, default=0, help="each has another order")
    parser.add_argument(
        "--position", type=Path, help="local folder where the position is kept, of each epoch its own"
    )
    parser.add_argument(
        "--stop-after", type=int, help="samples of this node; the batch that reaches it is the last"
    )
    options = parser.parse_args(arguments)

    position = load_position(options.position, options.epoch) if options.position else {}
    seed = None if options.seed is None else f"{options.seed}, epoch {options.epoch}"
    count, started = 0, time.perf_counter()
    for samples in make_loader(options.folder, position, options.workers, options.batch_size, seed):
        train_step(samples)
        for sample in samples:
            advance(position, sample["shard"], sample["number"])
        count += len(samples)
        if options.stop_after is not None and count >= options.stop_after:
            break
    seconds = time.perf_counter() - started
    if options.position:
        save_position(options.position, options.epoch, position)
    print(f"{count} samples, {count / seconds:.0f} samples/s")


if __name__ == "__main__":
    main()
