"""Paired tars in a torch DataLoader with two workers on each of some nodes: a line with what each pass of a
node saw.

Arguments: folder with images/ and embeddings/, number of shards, start method of the workers, policy, number
of nodes.
"""

import json
import logging
import os
import sys
from pathlib import Path

import webdataset as wds
from torch.utils.data import DataLoader

from mm_assets.formats import MultiModalWebDataset

PASSES = 3


def main(folder: Path, count: int, start_method: str, policy: str) -> None:
    dataset = MultiModalWebDataset(
        {name: f"{folder / name}/shard_{{0000..{count - 1:04d}}}.tar" for name in ("images", "embeddings")},
        shardshuffle=100,
        detshuffle=True,
        seed=42,
        nodesplitter=wds.split_by_node,
        workersplitter=wds.split_by_worker,
        missing_key_policy=policy,
    )
    loader = DataLoader(
        dataset, num_workers=2, batch_size=None, multiprocessing_context=start_method, persistent_workers=True
    )
    passes = [
        [(sample["__key__"], sample["jpg"].decode(), sample["emb.npy"].decode()) for sample in loader]
        for _ in range(PASSES)
    ]
    print(json.dumps(passes))


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(process)d %(message)s")
    for rank in range(int(sys.argv[5])):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": sys.argv[5]}  # as torchrun does
        main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
