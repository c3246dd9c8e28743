"""`mm_assets.train` under real DataLoaders: what a training loop is given when it stops and resumes.

Argument: a folder of tars. Last line: JSON of lists of sample ids.
"""

import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import sys
from collections.abc import Iterable
from typing import Any
from unittest import mock

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from mm_assets.train import InterleavedDataset, Mixture


def sample_id(sample: Any) -> str:
    return sample["sample_id"]  # type: ignore[no-any-return]


def dataset(folder: str, rank: int = 0, world_size: int = 1) -> InterleavedDataset:
    return InterleavedDataset(folder, seed=4, window=2, transform=sample_id, rank=rank, world_size=world_size)


def mixture(folder: str, rank: int, world_size: int) -> Mixture:
    parts = [InterleavedDataset(folder, seed=seed, transform=sample_id) for seed in (1, 2)]
    return Mixture(parts, [2, 1], rank=rank, world_size=world_size)


def elastic(folder: str, make: Any) -> list[str]:
    """Runs with other numbers of ranks and workers; workers have read ahead when each of them stops."""
    choice = random.Random(6)
    given: list[str] = []
    state = None
    for ranks, workers, stop in ((2, 2, 2), (3, 0, 1), (1, 3, 3), (2, 1, 1), (1, 2, None)):
        kept = []
        for rank in range(ranks):
            loader = make(folder, rank, ranks).loader(3, workers)
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, stop):
                given += batch
            kept.append(loader.state_dict())
        state = choice.choice(kept)
    return given


def two_epochs(folder: str) -> list[list[str]]:
    """Of one loader, whose workers live on."""
    loader = dataset(folder).loader(4, 2)
    return [[one for batch in loader for one in batch] for _ in range(2)]


def plain(folder: str) -> list[str]:
    """torch's own DataLoader, of two ranks with two workers each."""
    loaders = [DataLoader(dataset(folder, rank, 2), batch_size=3, num_workers=2) for rank in range(2)]
    return [one for loader in loaders for batch in loader for one in batch]


def stateful(folder: str) -> list[str]:
    """torchdata's, which resumes with as many workers as before."""
    first = StatefulDataLoader(dataset(folder), batch_size=3, num_workers=2)
    given = [one for batch in itertools.islice(first, 5) for one in batch]
    state = first.state_dict()
    second = StatefulDataLoader(dataset(folder), batch_size=3, num_workers=2)
    second.load_state_dict(state)
    return given + [one for batch in second for one in batch]


def digests(batches: Iterable[Any]) -> list[str]:
    return [hashlib.sha256(repr(batch).encode()).hexdigest() for batch in batches]


def handed_over(folder: str) -> dict[str, list[str]]:
    """Digests of whole batches of two epochs, the first of which is left after three batches and goes on."""

    def epochs(workers: int, **options: Any) -> list[str]:
        loader = InterleavedDataset(folder, seed=4).loader(4, workers, **options)
        begun = digests(itertools.islice(loader, 3))
        return [*begun, *digests(loader), *digests(loader)]

    found = {
        "no workers": epochs(0),
        "workers": epochs(2),
        "one after the other": epochs(1, prefetch_factor=1),
        "many waiting": epochs(2, prefetch_factor=5),
        "new workers": epochs(2, persistent_workers=False),
        "spawned": epochs(1, multiprocessing_context="spawn"),
    }
    with mock.patch("mm_assets.train.loader._PART", 1 << 14):  # most batches are larger
        found["too large"] = epochs(2)
    with mock.patch("os.memfd_create", side_effect=OSError):
        found["no memory"] = epochs(2)
    gc.collect()
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    found["left open"] = [link for link in links if os.path.exists(link) and "mm-assets" in os.readlink(link)]
    return found


def of_forked_processes(folder: str) -> dict[str, Any]:
    """Batches of two processes with one loader, made before the second was forked: each goes through an epoch
    of its own. In memory of both, a worker of one could write over a batch of the other.
    """
    loader = InterleavedDataset(folder, seed=4).loader(4, 1)
    fork = multiprocessing.get_context("fork")
    told = fork.Queue()

    def epoch(number: int) -> tuple[list[str], int]:
        loader.dataset.set_epoch(number)
        return digests(loader), os.fstat(loader._torch_loader.collate_fn._file).st_ino

    second = fork.Process(target=lambda: told.put(epoch(1)))
    second.start()
    batches, memory = zip(epoch(0), told.get(timeout=60), strict=True)
    second.join()
    alone = InterleavedDataset(folder, seed=4).loader(4)
    return {"batches": batches, "memory": memory, "alone": [digests(alone), digests(alone)]}


def refuse_one(sample: Any) -> Any:
    if sample["sample_id"].endswith("7"):
        raise ValueError("a sample of number 7")
    return sample


def refused(folder: str) -> str:
    """What the loop is told of a fault in a worker."""
    try:
        digests(InterleavedDataset(folder, transform=refuse_one).loader(4, 2))
    except ValueError as error:
        return str(error)
    return ""


def main(folder: str) -> None:
    found = {
        "elastic": elastic(folder, dataset),
        "mixture": elastic(folder, mixture),
        "two epochs": two_epochs(folder),
        "plain": plain(folder),
        "stateful": stateful(folder),
        "handed over": handed_over(folder),
        "forked": of_forked_processes(folder),
        "refused": refused(folder),
    }
    tensors = InterleavedDataset(folder, decode="tensor", shuffle=False)
    found["shapes"], found["shapes of workers"] = (
        [[list(item["image"].shape) for item in one["items"] if item["modality"] == "image"] for one in each]
        for each in (tensors, itertools.chain.from_iterable(tensors.loader(5, 2)))
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
