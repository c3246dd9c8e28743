"""Train from the Lance table in any order: random access by sample, no shuffle buffer, no tars to unpack.

    python examples/lance_loader.py STORAGE/lance/items.lance --seed 7 --epochs 2

The table has a row for each item; those of a sample lie together, in order. One pass over ids (no pictures)
tells where samples begin; then a batch is one ``take`` of rows. A sample costs the same wherever it lies.
"""

import argparse
import io
import time
from itertools import pairwise
from typing import Any

import lance
import numpy as np
import pyarrow.compute as pc
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

COLUMNS = ["sample_id", "modality", "text_content", "binary_content"]


class LanceSamples(Dataset[dict[str, Any]]):
    """The samples of one version of a table by number; a commit meanwhile changes nothing here."""

    def __init__(self, uri: str) -> None:
        table = lance.dataset(uri)
        self._uri, self._version = uri, table.version
        self._table: lance.LanceDataset | None = None
        self._starts = first_rows(table)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        """The samples of a batch, which a DataLoader asks for at once."""
        if self._table is None:  # each worker opens the table itself
            self._table = lance.dataset(self._uri, version=self._version)
        spans = [range(self._starts[number], self._starts[number + 1]) for number in numbers]
        rows = self._table.take([row for span in spans for row in span], columns=COLUMNS).to_pylist()
        ends = np.cumsum([0, *map(len, spans)])
        return [interleaved(rows[start:end]) for start, end in pairwise(ends)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}


def first_rows(table: lance.LanceDataset) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The row where each sample begins, then the number of rows."""
    starts, rows, previous = [], 0, None
    for batch in table.to_batches(columns=["sample_id"]):
        ids = batch.column("sample_id")
        is_new = np.append(ids[0].as_py() != previous, pc.not_equal(ids[1:], ids[:-1]))
        starts.append(rows + np.flatnonzero(is_new))
        rows, previous = rows + len(ids), ids[-1].as_py()
    return np.concatenate([*starts, [rows]])


def interleaved(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Texts and pictures of a sample in the order of its rows.

    Its other fields are columns, too: ask for those you need.
    """
    items: list[str | Image.Image] = []
    for row in rows:
        if row["modality"] == "text":
            items.append(row["text_content"])
        elif row["modality"] == "image":
            items.append(Image.open(io.BytesIO(row["binary_content"])).convert("RGB"))
    return {"sample_id": rows[0]["sample_id"], "items": items}


def train_step(samples: list[dict[str, Any]]) -> None:
    """Stands for your model."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", help="path or URL of …/items.lance")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args(arguments)

    loader = DataLoader(
        LanceSamples(options.table),
        batch_size=options.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(options.seed),
        num_workers=options.workers,
        collate_fn=list,
        persistent_workers=options.workers > 0,
        multiprocessing_context="spawn"
        if options.workers
        else None,  # Lance has threads, which do not survive a fork
    )
    for epoch in range(options.epochs):
        count, started = 0, time.perf_counter()
        for samples in loader:
            train_step(samples)
            count += len(samples)
        print(f"epoch {epoch}: {count} samples, {count / (time.perf_counter() - started):.0f} samples/s")


if __name__ == "__main__":
    main()
