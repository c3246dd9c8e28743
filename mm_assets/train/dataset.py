"""Datasets to train from.

* `InterleavedDataset`: the samples of one dataset of any format.
* `Mixture`: several, drawn from by weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np

from mm_assets.formats.images import sniff
from mm_assets.formats.images.decode import MAX_PIXELS, decoding
from mm_assets.model.errors import DataError, ImageError, counted, require
from mm_assets.model.samples import Document
from mm_assets.train.loader import EpochDataset
from mm_assets.train.order import EpochOrder, Positions, Schedule, digest_of
from mm_assets.train.shards import LocalCopies
from mm_assets.train.sources import ShardUrls, open_source

Decode = Literal["pil", "tensor"]

_LARGEST_BLOCK = 31 << 20


class InterleavedDataset(EpochDataset):
    """The samples of tars (paired ones, too), an Arrow cache, a Lance table, or Parquet with a row an item.

    A sample is ``{"sample_id", "items", "metadata"}``; items are in the order of the document, each with
    ``"modality"``, ``"position"`` and ``"text"`` or ``"image"``: `mm_assets.model.samples.document_of` has it
    all. Of paired tars it is what `MultiModalWebDataset` gives.

    The order of an epoch depends on the samples, ``seed``, its number and ``window`` alone. Shards are
    shuffled, then the samples of ``window`` shards together (`EpochOrder`). A shard is a tar, a cache, a
    fragment, a row group of Parquet, or a group of paired tars. If ``plan.parquet`` of ``mm-assets reshard``
    lies beside the data, a sample comes as often as it says, each time among others.

    Args:
        path: folder, file, pattern or URL; or the tars of each modality, as for `MultiModalWebDataset`.
        split: a split of the plan, to be named if there are several.
        shuffle: False gives the samples as they lie.
        seed: of the order.
        rank: None takes RANK of the environment, or 0.
        world_size: ranks there are; None takes WORLD_SIZE of the environment, or 1.
        window: shards that are shuffled together, and read at the same time.
        decode: images as Pillow's in RGB, or as ``torch.uint8`` of channels, rows, columns; None leaves the
            bytes of their files.
        transform: called with each sample, where it is read.
        cache_dir: local folder for copies of remote tars and Parquet; None takes one that all runs share.
        cache_bytes: bytes of these copies at most, or ``"32GiB"``. Give it room for more than a window.

    Raises:
        FileNotFoundError: nothing is there.
        DataError: there is no sample, no such split, or none named of several; or the data is none to train
            from.
        ValueError: an argument is none of those above.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Mapping[str, ShardUrls],
        *,
        split: str | None = None,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        window: int = 8,
        decode: Decode | None = None,
        transform: Callable[[Any], Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str = "32GiB",
    ) -> None:
        super().__init__(rank, world_size)
        if decode not in (None, *get_args(Decode)):
            raise ValueError(f"decode is None, 'pil' or 'tensor', not {decode!r}")
        if window < 1:
            raise ValueError(f"window is a number of shards, not {window}")
        if decode == "tensor":
            require("torch")
        keep_freed_memory()
        self._place = str(path)
        self._seed, self._window = (seed if shuffle else None), window
        self._decode, self._transform = decode, transform
        self._chosen = open_source(path, split, LocalCopies(cache_dir, cache_bytes))
        self.is_forkable = self._chosen.source.is_forkable
        if not self.epoch_length:
            raise DataError(f"{self._place}: no samples{f' of split {split!r}' if split else ''}")
        self._order = lru_cache(maxsize=2)(self._make_order)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._place}: {counted(self.epoch_length, 'sample')}>"

    @property
    def epoch_length(self) -> int:
        return int(self._chosen.counts.sum())

    @cached_property
    def order_digest(self) -> str:
        return digest_of("order", 1, self._chosen.digest, self._seed, self._window)

    def fetch(self, epoch: int, positions: Positions) -> list[Any]:
        runs, numbers = self._order(epoch).locate(positions)
        found: list[Any] = [None] * len(positions)
        for run in dict.fromkeys(runs.tolist()):
            at = np.flatnonzero(runs == run)
            for place, sample in zip(at.tolist(), self._chosen.read(run, numbers[at]), strict=True):
                found[place] = self._finished(sample)
        return found

    def _finished(self, sample: Any) -> Any:
        if self._decode is not None and "items" in sample:
            decode_images(sample, self._decode, self._place)
        return sample if self._transform is None else self._transform(sample)

    def _make_order(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._chosen.counts, self._seed, epoch, self._window)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_order"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        keep_freed_memory()
        self.__dict__.update(state)
        self._order = lru_cache(maxsize=2)(self._make_order)


def keep_freed_memory() -> None:
    """Have this process reuse the memory of a batch for the next one.

    glibc gives large blocks back to the kernel, and to get them again costs more than to read a sample, until
    a block of this size has been freed once: the largest by which it adapts its limits.
    """
    block = bytearray(_LARGEST_BLOCK)  # never touched, so no memory
    del block


def decode_images(sample: Document, kind: Decode, place: str) -> None:
    """Put a picture in the place of each image file.

    Raises:
        DataError: one cannot be decoded, or has more than `MAX_PIXELS`.
    """
    for item in sample["items"]:
        data = item.get("image")
        if data is None:
            continue
        try:
            with decoding(data, sniff(data) or "", MAX_PIXELS) as image:
                picture: Any = image.convert("RGB")
        except (ImageError, KeyError) as error:
            raise DataError(
                f"{place}: sample {sample['sample_id']!r:.200}, position {item['position']}: {error}"
            ) from error
        if kind == "tensor":
            import torch

            picture = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
        item["image"] = picture


class Mixture(EpochDataset):
    """Samples of several datasets by weights, in a fixed schedule; elastic as each of them.

    Each run of positions has the share of each dataset (`Schedule`), so every batch is mixed as the weights
    say, give or take two samples. A dataset gives all its samples before one comes again, then goes on with
    its next epoch. An epoch of a mixture is as long as all datasets together, and the next one goes on where
    they were. Samples that are dictionaries get ``"source"``, the number of their dataset.

    Args:
        datasets: their own states do not count.
        weights: shares of the samples, in any unit.
        rank: None takes that of the datasets, RANK of the environment, or 0.
        world_size: ranks there are; None takes that of the datasets, WORLD_SIZE of the environment, or 1.

    Raises:
        ValueError: the weights are not one positive number for each dataset, or ranks differ.
    """

    def __init__(
        self,
        datasets: Sequence[EpochDataset],
        weights: Sequence[float],
        *,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(rank, world_size, datasets)
        if len(datasets) != len(weights):
            raise ValueError(f"{len(datasets)} datasets and {len(weights)} weights")
        self.datasets = list(datasets)
        self._schedule = Schedule(weights)
        self.is_forkable = all(dataset.is_forkable for dataset in datasets)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(repr, self.datasets))}>"

    @property
    def epoch_length(self) -> int:
        return sum(dataset.epoch_length for dataset in self.datasets)

    @cached_property
    def order_digest(self) -> str:
        parts = [dataset.order_digest for dataset in self.datasets]
        return digest_of("mixture", 1, parts, self._schedule.counts.tolist())

    def fetch(self, epoch: int, positions: Positions) -> list[Any]:
        sources, draws = self._schedule.locate(epoch * self.epoch_length + positions)
        found: list[Any] = [None] * len(positions)
        for source in dict.fromkeys(sources.tolist()):
            dataset = self.datasets[source]
            epochs, places = np.divmod(draws, dataset.epoch_length)
            for one in np.unique(epochs[sources == source]).tolist():
                at = np.flatnonzero((sources == source) & (epochs == one))
                for place, sample in zip(at.tolist(), dataset.fetch(one, places[at]), strict=True):
                    found[place] = {**sample, "source": source} if isinstance(sample, dict) else sample
        return found
