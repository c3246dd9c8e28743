"""The same tars, or sets made of them, through the loaders of a training loop. Runs in ``.venv-clients``.

Each gives the bytes of the images of a sample and its json, or its items; nothing is decoded.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.measuring import Work

Batch = list[Any]

_BATCH = 16
_SEED = 20_264


def prepare(loader: str, folder: str, workers: int) -> Work:
    """One shuffled epoch in batches of 16, by a torch DataLoader with these workers."""
    import torch

    torch.set_num_threads(1)
    batches = LOADERS[loader](folder, workers)

    def work() -> dict[str, Any]:
        samples = nbytes = 0
        for batch in batches:
            samples += len(batch)
            nbytes += sum(map(_nbytes, batch))
        return {"samples": samples, "nbytes": nbytes}

    return work


def _nbytes(sample: Any) -> int:
    """Bytes of the images."""
    if "items" in sample:
        return sum(len(item["image"]) for item in sample["items"] if item["modality"] == "image")
    return sum(
        len(value)
        for name, value in sample.items()
        if name[:1].isdecimal() and isinstance(value, bytes | bytearray)
    )


def _torch_loader(dataset: Any, workers: int) -> Iterable[Batch]:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=_BATCH, num_workers=workers, collate_fn=list)


def _ours(kind: str) -> Callable[[str, int], Iterable[Batch]]:
    def batches(folder: str, workers: int) -> Iterable[Batch]:
        from mm_assets.train import InterleavedDataset

        return InterleavedDataset(f"{folder}/{kind}", seed=_SEED).loader(
            _BATCH,
            workers,
            persistent_workers=False,  # else what they used is not counted
        )

    return batches


def _webdataset(folder: str, workers: int) -> Iterable[Batch]:
    import webdataset as wds

    tars = sorted(glob.glob(f"{folder}/webdataset/*.tar"))
    return _torch_loader(wds.WebDataset(tars, shardshuffle=100, seed=_SEED).shuffle(100), workers)


def _hugging_face(folder: str, workers: int) -> Iterable[Batch]:
    import datasets

    streamed = datasets.load_dataset(f"{folder}/webdataset", split="train", streaming=True)
    assert streamed.features is not None
    images = [name for name in streamed.features if name[:1].isdecimal()]
    for name in images:
        streamed = streamed.cast_column(name, datasets.Image(decode=False))
    streamed = streamed.shuffle(seed=_SEED, buffer_size=100).map(_with_bytes)
    return _torch_loader(streamed, workers)


def _with_bytes(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value["bytes"] if isinstance(value, dict) and "bytes" in value else value
        for name, value in sample.items()
    }


def _mosaicml(folder: str, workers: int) -> Iterable[Batch]:
    streaming = _streaming()
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(
        local=f"{folder}/mds", shuffle=True, shuffle_seed=_SEED, batch_size=_BATCH
    )
    return _torch_loader(_Unpacked(dataset), workers)


class _Unpacked:
    """Samples of one column ``sample``, made dictionaries again in the workers."""

    def __new__(cls, dataset: Any) -> Any:
        from torch.utils.data import IterableDataset

        class Unpacked(IterableDataset):
            def __iter__(self) -> Iterator[dict[str, Any]]:
                return map(_unpacked, dataset)

        return Unpacked()


def _litdata(folder: str, workers: int) -> Iterable[Batch]:
    import litdata

    dataset = litdata.StreamingDataset(f"{folder}/litdata", shuffle=True, seed=_SEED)
    options = {"batch_size": _BATCH, "num_workers": workers, "collate_fn": _unpack_all}
    return litdata.StreamingDataLoader(dataset, **options)  # type: ignore[no-any-return]


def _unpack_all(samples: Batch) -> Batch:
    return list(map(_unpacked, samples))


LOADERS: dict[str, Callable[[str, int], Iterable[Batch]]] = {
    "ours": _ours("webdataset"),
    "ours, Arrow cache": _ours("arrow_cache"),
    "webdataset": _webdataset,
    "Hugging Face": _hugging_face,
    "mosaicml-streaming": _mosaicml,
    "LitData": _litdata,
}


def _members(folder: str) -> Iterator[dict[str, Any]]:
    import webdataset as wds

    for sample in wds.WebDataset(sorted(glob.glob(f"{folder}/webdataset/*.tar")), shardshuffle=False):
        yield {name: value for name, value in sample.items() if not name.startswith("__")}


def _packed(sample: dict[str, Any]) -> bytes:
    """The members one after the other, behind a line of JSON with their sizes: columns are fixed there."""
    head = json.dumps({name: len(value) for name, value in sample.items()}).encode()
    return b"".join([head, b"\n", *sample.values()])


def _unpacked(stored: dict[str, Any]) -> dict[str, bytes]:
    data = memoryview(stored["sample"])
    head = bytes(data[: 1 << 16]).partition(b"\n")[0]
    at, found = len(head) + 1, {}
    for name, size in json.loads(head).items():
        found[name] = bytes(data[at : at + size])
        at += size
    return found


def make_others(folder: str) -> Work:
    """The same samples as MDS and as LitData's chunks, unless they are there."""

    def work() -> dict[str, Any]:
        if not os.path.exists(f"{folder}/mds"):
            with _streaming().MDSWriter(out=f"{folder}/mds", columns={"sample": "bytes"}) as writer:
                for sample in _members(folder):
                    writer.write({"sample": _packed(sample)})
        if not os.path.exists(f"{folder}/litdata"):
            import litdata
            from litdata.streaming.cache import Cache

            cache = Cache(f"{folder}/litdata", chunk_bytes="64MB")
            for number, sample in enumerate(_members(folder)):
                cache[number] = {"sample": _packed(sample)}
            cache.done()
            cache.merge()
            return {"litdata": litdata.__version__}
        return {}

    return work


def _streaming() -> Any:
    """mosaicml-streaming without its sets of pictures: they need torchvision, which is made for CUDA."""
    sys.modules.setdefault("streaming.vision", types.ModuleType("streaming.vision"))
    import streaming

    return streaming
