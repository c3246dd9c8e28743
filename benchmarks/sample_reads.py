"""The same interleaved samples in several formats, read in order and at random: what a training loop waits
for.

A sample is its texts and the bytes of its images, in order. Nothing is decoded: that costs the same in all.
"""

from __future__ import annotations

import glob
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from benchmarks.measuring import Work

_COLUMNS = ["sample_id", "modality", "text_content", "binary_content"]

Sample = tuple[str, list[str | bytes]]
"""Id and items."""


class Samples(Protocol):
    """A dataset, opened."""

    def __iter__(self) -> Iterator[Sample]:
        """All samples in order."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Sample: ...


class ParquetSamples:
    """Our Parquet files, by row groups: no smaller part can be read alone."""

    def __init__(self, folder: str) -> None:
        import pyarrow.parquet as pq

        self._files = [
            pq.ParquetFile(path, memory_map=True) for path in sorted(glob.glob(f"{folder}/*.parquet"))
        ]
        self._places: list[
            tuple[int, int, int, int]
        ] = []  # file, row group, first row in it, row behind the last
        for at, file in enumerate(self._files):
            for group in range(file.num_row_groups):
                ids = file.read_row_group(group, columns=["sample_id"]).column(0).to_pylist()
                self._places += [(at, group, start, end) for start, end in _spans(ids)]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Sample:
        file, group, start, end = self._places[number]
        return next(
            _samples(self._files[file].read_row_group(group, columns=_COLUMNS).slice(start, end - start))
        )

    def __iter__(self) -> Iterator[Sample]:
        for file in self._files:
            for group in range(file.num_row_groups):
                yield from _samples(file.read_row_group(group, columns=_COLUMNS))


class LanceSamples:
    """Our Lance table: a scan in order, ``take`` at random."""

    def __init__(self, folder: str) -> None:
        import lance

        self._table = lance.dataset(f"{folder}/items.lance")
        self._places = _spans(self._table.to_table(columns=["sample_id"]).column(0).to_pylist())

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Sample:
        return next(_samples(self._table.take(list(range(*self._places[number])), columns=_COLUMNS)))

    def __iter__(self) -> Iterator[Sample]:
        for rows in _whole_samples(self._table.to_batches(columns=_COLUMNS)):
            yield from _samples(rows)


class TarSamples:
    """Our tars, by webdataset: in order only."""

    def __init__(self, folder: str) -> None:
        import webdataset as wds

        with open(f"{folder}/index.json") as file:
            shards = json.load(file)["shardlist"]
        self._dataset = wds.WebDataset(
            [os.path.join(folder, shard["url"]) for shard in shards], shardshuffle=False
        )
        self._count = sum(shard["nsamples"] for shard in shards)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        raise TypeError("a tar is read in order")

    def __iter__(self) -> Iterator[Sample]:
        for sample in self._dataset:
            document = json.loads(sample["json"])
            items: list[str | bytes] = []
            for text, image in zip(document["texts"], document["images"], strict=True):
                items += [
                    part for part in (text, None if image is None else sample[image]) if part is not None
                ]
            yield document["sample_id"], items


class CacheSamples:
    """Our Arrow cache by `InterleavedArrowDataset`, which gives the metadata of sample and items as well.

    Its shards are checked before, which is done once: the workers of a DataLoader know what the process that
    starts them has checked.
    """

    def __init__(self, folder: str) -> None:
        from mm_assets import InterleavedArrowDataset

        _check_shards(folder)
        self._dataset = InterleavedArrowDataset(folder)
        self._count = len(self._dataset)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        sample = self._dataset[number]
        return sample["sample_id"], [item[item["modality"]] for item in sample["items"]]

    def __iter__(self) -> Iterator[Sample]:
        return map(self.__getitem__, range(self._count))


class CacheRows:
    """Our Arrow cache by `ArrowCache.rows`: the columns that the other readers here read."""

    def __init__(self, folder: str) -> None:
        from mm_assets import ArrowCache

        _check_shards(folder)
        found = sorted(glob.glob(f"{folder}/*/_metadata.json"))
        self._caches = [ArrowCache(os.path.dirname(path), decode=False) for path in found]
        self._places = [
            (at, *span)
            for at, cache in enumerate(self._caches)
            for span in _spans(
                [
                    sample_id
                    for batch in cache.batches()
                    for sample_id in batch.column("sample_id").to_pylist()
                ]
            )
        ]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Sample:
        import pyarrow as pa

        cache, start, end = self._places[number]
        return next(_samples(pa.Table.from_batches(self._caches[cache].rows(start, end))))

    def __iter__(self) -> Iterator[Sample]:
        return map(self.__getitem__, range(len(self)))


class HuggingFaceSamples:
    """The same rows in the Arrow files of Hugging Face datasets, by slices as Arrow tables: its fastest
    way.
    """

    def __init__(self, folder: str) -> None:
        import datasets

        self._dataset = datasets.load_from_disk(folder).with_format("arrow")
        self._places = _spans(self._dataset.data.column("sample_id").to_pylist())

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Sample:
        start, end = self._places[number]
        return next(_samples(self._dataset[start:end]))

    def __iter__(self) -> Iterator[Sample]:
        return map(self.__getitem__, range(len(self)))


READERS: dict[str, Callable[[str], Samples]] = {
    "cache": CacheSamples,
    "cache rows": CacheRows,
    "datasets": HuggingFaceSamples,
    "lance": LanceSamples,
    "parquet": ParquetSamples,
    "webdataset": TarSamples,
}


def prepare(reader: str, folder: str, order: Sequence[int] | None = None) -> Work:
    """Read samples of these numbers, or all in order.

    What has to be known of the rows before is no part of the work.
    """
    samples = READERS[reader](folder)

    def work() -> dict[str, Any]:
        count = nbytes = 0
        for _, items in samples if order is None else map(samples.__getitem__, order):
            count += 1
            nbytes += sum(map(len, items))
        return {"samples": count, "nbytes": nbytes}

    return work


def digest_of(reader: str, folder: str, order: Sequence[int] | None = None) -> Work:
    """One digest over ids and items of the same samples, in their order."""
    import xxhash

    samples = READERS[reader](folder)

    def work() -> dict[str, Any]:
        digest, count = xxhash.xxh3_128(), 0
        for sample_id, items in samples if order is None else map(samples.__getitem__, order):
            count += 1
            digest.update(f"{sample_id} {len(items)}".encode())
            for item in items:
                kind, data = ("text", item.encode()) if isinstance(item, str) else ("image", item)
                digest.update(f"{kind} {len(data)} ".encode())
                digest.update(data)
        return {"samples": count, "digest": digest.hexdigest()}

    return work


def make_hugging_face(files: Sequence[str], folder: str) -> Work:
    """Their Arrow files of the rows of our Parquet."""
    import datasets

    def work() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as cache:
            dataset = datasets.Dataset.from_parquet(list(files), cache_dir=cache)
            dataset.save_to_disk(folder)
        return {"rows": len(dataset)}

    return work


def _check_shards(folder: str) -> None:
    from mm_assets import read_shard

    for path in glob.glob(f"{folder}/*/*.arrow"):
        read_shard(path)


def _spans(ids: Sequence[str]) -> list[tuple[int, int]]:
    """First row and row behind the last of each sample."""
    starts = [row for row in range(len(ids)) if row == 0 or ids[row] != ids[row - 1]]
    return list(pairwise([*starts, len(ids)]))


def _samples(rows: Any) -> Iterator[Sample]:
    """The samples of a table of whole samples."""
    ids, modalities = (rows.column(name).to_pylist() for name in ("sample_id", "modality"))
    texts, images = rows.column("text_content"), rows.column("binary_content")
    for start, end in _spans(ids):
        items: list[str | bytes] = []
        for row in range(start, end):
            if modalities[row] == "text":
                items.append(texts[row].as_py())
            elif modalities[row] == "image":
                items.append(images[row].as_py())
        yield ids[start], items


def _whole_samples(batches: Iterable[Any]) -> Iterator[Any]:
    """The rows of batches as tables that end with a sample."""
    import pyarrow as pa

    rest = None
    for batch in batches:
        table = pa.Table.from_batches([batch])
        table = table if rest is None else pa.concat_tables([rest, table])
        last, _ = _spans(table.column("sample_id").to_pylist())[-1]
        yield table.slice(0, last)
        rest = table.slice(last)
    if rest is not None:
        yield rest


def shuffled(count: int, seed: int) -> list[int]:
    """All numbers below ``count`` in an order that is the same in each run."""
    return [int(number) for number in np.random.default_rng(seed).permutation(count)]
