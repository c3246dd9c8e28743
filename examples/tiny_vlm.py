"""Train a tiny model of texts and images for two epochs: documents become tokens, tokens full sequences.

    python examples/tiny_vlm.py STORAGE/webdataset --epochs 2 --save run
    torchrun --nproc-per-node 2 examples/tiny_vlm.py STORAGE/webdataset --epochs 2

Tokens are bytes. Of each image `PATCHES` x `PATCHES` patches stand in the place of its placeholders. Put your
tokenizer in the place of `tokenize`, and your model in that of `TinyVLM`; the loop stays as it is.
"""

import argparse
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_assets.train import InterleavedDataset, PackedDataset, count_tokens, pack

LENGTH, IMAGE_CAP = 512, 8  # of a sequence
PATCHES, PIXELS = 4, 8  # of a side of an image, and of a patch
IMAGE, BEGIN, FIRST_BYTE = 0, 1, 2
TOKENS = FIRST_BYTE + 256
IGNORED = -100


def tokenize(document: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Tokens of a document, with placeholders for images, and where each image begins."""
    ids, images = [BEGIN], []
    for item in document["items"]:
        if item["modality"] == "text":
            ids += [FIRST_BYTE + byte for byte in (item["text"] or "").encode()]
        elif item["image"] is not None:
            images.append(len(ids))
            ids += [IMAGE] * PATCHES**2
    return ids, images


def collate(sequences: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Sequences as one tensor; documents of a sequence do not see each other. Runs in the workers."""
    ids = torch.full((len(sequences), LENGTH), BEGIN)
    documents = torch.full((len(sequences), LENGTH), -1)
    patches, places = [], []
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence["input_ids"])] = torch.from_numpy(sequence["input_ids"])
        ends = sequence["documents"]
        documents[row, : ends[-1]] = torch.from_numpy(np.repeat(np.arange(len(ends) - 1), np.diff(ends)))
        for data, place in zip(sequence["images"], sequence["image_positions"].tolist(), strict=True):
            patches.append(patches_of(data))
            places += [row * LENGTH + place + patch for patch in range(PATCHES**2)]
    return {
        "ids": ids,
        "documents": documents,
        "patches": torch.cat(patches) if patches else torch.zeros(0, 3 * PIXELS**2),
        "places": torch.tensor(places, dtype=torch.long),
    }


def patches_of(data: bytes) -> torch.Tensor:
    side = PATCHES * PIXELS
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((side, side)), np.float32) / 255
    parts = pixels.reshape(PATCHES, PIXELS, PATCHES, PIXELS, 3).swapaxes(1, 2)
    return torch.from_numpy(parts.reshape(PATCHES**2, -1).copy())


class TinyVLM(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.image = nn.Linear(3 * PIXELS**2, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Mean loss of the next token, within each document; patches are no targets."""
        ids, documents = batch["ids"], batch["documents"]
        embedded = self.tokens(ids).flatten(0, 1)
        embedded = embedded.index_copy(0, batch["places"], self.image(batch["patches"])).view(*ids.shape, -1)
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        hidden = later | (documents[:, :, None] != documents[:, None, :])
        state = self.block(embedded + self.places.weight, src_mask=hidden.repeat_interleave(2, 0))
        targets = ids[:, 1:].masked_fill(
            (documents[:, 1:] != documents[:, :-1]) | (ids[:, 1:] == IMAGE) | (documents[:, 1:] < 0), IGNORED
        )
        return nn.functional.cross_entropy(
            self.head(state[:, :-1]).flatten(0, 1), targets.flatten(), ignore_index=IGNORED
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", help="folder or URL of an output")
    parser.add_argument("--split", help="of a training set, such as train")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--save", type=Path, help="folder of model and data state; goes on from there, if any"
    )
    parser.add_argument("--stop-after", type=int, help="steps")
    options = parser.parse_args(arguments)

    try:
        documents = InterleavedDataset(options.path, split=options.split, shuffle=False)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    is_parallel = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_parallel:
        dist.init_process_group("gloo")
    plan = pack(count_tokens(documents, tokenize), LENGTH, IMAGE_CAP)  # once, and in files, for real data
    dataset = PackedDataset(documents, plan, tokenize, seed=1)
    loader = dataset.loader(options.batch_size, options.workers, collate=collate)
    model: nn.Module = TinyVLM()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    checkpoint = options.save / "checkpoint.pt" if options.save else None
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
    trained = DistributedDataParallel(model) if is_parallel else model
    steps = 0
    while dataset.epoch < options.epochs and steps != options.stop_after:
        losses, epoch = [], dataset.epoch
        for batch in loader:
            loss = trained(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            steps += 1
            if steps == options.stop_after:
                break
        if dataset.rank == 0:
            print(f"epoch {epoch}: {len(losses)} steps, mean loss {np.mean(losses):.3f}")
    if checkpoint and dataset.rank == 0:  # ranks go in step: the state of one is that of all
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "data": loader.state_dict(),
        }
        torch.save(state, checkpoint)
    if is_parallel:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
