"""One loader for training: the samples of any output in a stated order, stopped and resumed anywhere.

* `InterleavedDataset`: the samples of tars, an Arrow cache, a Lance table, Parquet, or paired tars.
* `Mixture`: several datasets, drawn from by weights.
* `PackedDataset`: documents in sequences of one length, by a plan that is made before training. It gives the
  sequences in an order of its own.

1. `count_tokens` asks a tokenizer once for each document: its tokens, and where its images begin.
2. `pack` plans: documents are cut into pieces where images begin, as far as they have to be; pieces are put
   into sequences, the largest first, each into the first one with room (first fit decreasing). Sequences that
   are not full then are filled anew, with more documents cut. Nothing is dropped.

Counts and plans are small Parquet tables. Both name the data that they are of. See docs/training.md.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from mm_assets.formats.images import sniff
from mm_assets.formats.images.decode import MAX_PIXELS, decoding
from mm_assets.formats.parquet import publish_table, read_small_table
from mm_assets.model.errors import DataError, ImageError, counted, require
from mm_assets.model.samples import Document
from mm_assets.train.loader import EpochDataset, Loader
from mm_assets.train.order import EpochOrder, Positions, Schedule, digest_of, permutation
from mm_assets.train.shards import LocalCopies
from mm_assets.train.sources import ShardUrls, open_source

__all__ = ["InterleavedDataset", "Loader", "Mixture", "PackedDataset", "count_tokens", "pack"]

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


Tokenize = Callable[[Document], tuple[Sequence[int], Sequence[int]]]
"""Returns the tokens of a document, with placeholders for its images, and the number of the first token of
each image that has bytes, ascending."""

_ORDER = b"mm_assets:order"
_LENGTH = b"mm_assets:length"
_COUNTS = pa.schema([("tokens", pa.int64()), ("images", pa.list_(pa.int64()))])
_PLAN = pa.schema(
    [
        pa.field("pack", pa.int64()),
        pa.field("document", pa.int64()),  # its position in the dataset as it lies
        pa.field("start", pa.int64()),  # of its tokens
        pa.field("stop", pa.int64()),
        pa.field("first_image", pa.int64()),
        pa.field("images", pa.int64()),
    ]
)
_AT_ONCE = 64
_FULL = 0.98  # of the tokens, or images, of a sequence
_LEAST = 1 / 32  # of a sequence that is cut off a document: less fills little, and costs it its context
_GAIN = 0.01  # of the sequences, for which documents are cut


def count_tokens(dataset: EpochDataset, tokenize: Tokenize, file: str | None = None) -> pa.Table:
    """Return tokens and places of images of each document, in the order of the dataset's positions.

    Args:
        dataset: documents as they lie, ``InterleavedDataset(…, shuffle=False)``.
        tokenize: see `Tokenize`.
        file: path or URL of a Parquet file where they are kept.

    Raises:
        DataError: a document has places of images that are not ascending, or beyond its tokens.
    """
    tokens, images = [], []
    for start in range(0, dataset.epoch_length, _AT_ONCE):
        positions = np.arange(start, min(start + _AT_ONCE, dataset.epoch_length))
        for number, document in zip(positions, dataset.fetch(0, positions), strict=True):
            ids, places = tokenize(document)
            if list(places) != sorted(set(places)) or (
                len(places) and not 0 <= places[0] <= places[-1] < len(ids)
            ):
                raise DataError(
                    f"{dataset!r}: document {number}: images at {list(places)!s:.100} of {len(ids)} tokens"
                )
            tokens.append(len(ids))
            images.append([int(place) for place in places])
    table = pa.table({"tokens": tokens, "images": images}, _COUNTS)
    table = table.replace_schema_metadata({_ORDER: dataset.order_digest})
    if file is not None:
        publish_table(file, table)
    return table


def pack(
    counts: pa.Table | str, length: int, image_cap: int | None = None, file: str | None = None
) -> pa.Table:
    """Plan sequences of up to ``length`` tokens and ``image_cap`` images.

    A document that does not fit is cut where an image begins, into as few pieces as that allows. Where more
    than ``length`` tokens lie between two such places, they are cut after ``length`` tokens. Others are cut
    only where images begin, and if that fills sequences which else are not full.

    Args:
        counts: of `count_tokens`, or the file where they are.
        length: tokens of a sequence.
        image_cap: images of a sequence; None for any number.
        file: path or URL of a Parquet file where the plan is kept.

    Returns:
        A row for each piece, by sequence.

    Raises:
        ValueError: a limit is below 1.
        DataError: there are no documents.
    """
    if length < 1 or (image_cap is not None and image_cap < 1):
        raise ValueError(f"a sequence has room for tokens and images: {length}, {image_cap}")
    table = read_small_table(counts) if isinstance(counts, str) else counts
    if not len(table):
        raise DataError(f"{counts if isinstance(counts, str) else 'counts'}: no documents to pack")
    cap = image_cap if image_cap is not None else int(np.iinfo(np.int64).max)
    images = table.column("images").to_pylist()
    pieces = _table_of(
        (document, *piece)
        for document, (tokens, places) in enumerate(
            zip(table.column("tokens").to_pylist(), images, strict=True)
        )
        for piece in _pieces(tokens, places, length, cap)
    )
    packs = _first_fit(pieces, length, cap)
    pieces, packs = _refilled(pieces, packs, images, length, cap)
    order = np.lexsort((pieces[:, 1], pieces[:, 0], packs))
    columns = [packs[order], *pieces[order].T]
    plan = pa.Table.from_arrays([pa.array(column) for column in columns], schema=_PLAN)
    plan = plan.replace_schema_metadata({**(table.schema.metadata or {}), _LENGTH: str(length)})
    if file is not None:
        publish_table(file, plan)
    return plan


def _pieces(tokens: int, images: Sequence[int], length: int, cap: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, stop, first image, images) of the pieces of a document."""
    start = first = 0
    while start < tokens or (tokens == 0 and start == 0):
        stop, last = tokens, len(images)
        if stop - start > length or last - first > cap:
            # The last image that begins where the piece may end, and not at its beginning.
            allowed = [
                at
                for at in range(first, len(images))
                if start < images[at] <= start + length and at - first <= cap
            ]
            if allowed:
                last = allowed[-1]
                stop = images[last]
            else:
                stop = min(start + length, tokens)
                last = int(np.searchsorted(images, stop))
        yield start, stop, first, last - first
        if stop == start:
            return
        start, first = stop, last


def _table_of(pieces: Iterable[tuple[int, ...]]) -> Positions:
    """Return a row for each piece: document, start, stop, first image, images."""
    return np.array(list(pieces), np.int64).reshape(-1, 5)


def _first_fit(pieces: Positions, length: int, cap: int) -> Positions:
    """Return the sequence of each piece: the first with room, largest pieces first."""
    sizes, shown = pieces[:, 2] - pieces[:, 1], pieces[:, 4]
    # By their parts of both limits, or by images where these are what is scarce.
    orders = [_by_parts(pieces, length, cap), np.lexsort((np.arange(len(pieces)), -sizes, -shown))]
    found = []
    for order in orders:
        sequences, packs = _Sequences(len(pieces), length, cap), np.zeros(len(pieces), np.int64)
        for piece in order.tolist():
            size, images = int(sizes[piece]), int(shown[piece])
            if (at := sequences.first(size, images)) is None:
                at = sequences.open()
            sequences.put(at, size, images)
            packs[piece] = at
        found.append(packs)
    return min(found, key=np.max)


def _by_parts(pieces: Positions, length: int, cap: int) -> Positions:
    sizes, shown = pieces[:, 2] - pieces[:, 1], pieces[:, 4]
    return np.lexsort((np.arange(len(pieces)), -(sizes / length + shown / cap)))


def _refilled(
    pieces: Positions, packs: Positions, images: Sequence[Sequence[int]], length: int, cap: int
) -> tuple[Positions, Positions]:
    """Return pieces and their sequences, those of sequences that were not full dealt out anew.

    Of these, a piece that fits nowhere is cut where an image begins, and fills what is left of a sequence.
    """
    sizes, shown = pieces[:, 2] - pieces[:, 1], pieces[:, 4]
    is_full = np.maximum(np.bincount(packs, sizes) / length, np.bincount(packs, shown) / cap) >= _FULL
    full, is_kept = int(is_full.sum()), is_full[packs]
    loose = pieces[~is_kept]
    sequences = _Sequences(len(loose), length, cap)
    cut, places = [], []
    for document, start, stop, first, count in loose[_by_parts(loose, length, cap)].tolist():
        end = first + count
        while (at := sequences.first(stop - start, end - first)) is None:
            at = sequences.roomiest()
            room, most = sequences.room(at)
            last = min(bisect_right(images[document], start + room, first, end) - 1, first + most)
            if last < first or images[document][last] - start < max(1, _LEAST * length):
                at = sequences.open()
                break
            middle = images[document][last]
            cut.append((document, start, middle, first, last - first))
            places.append(at)
            sequences.put(at, middle - start, last - first)
            start, first = middle, last
        cut.append((document, start, stop, first, end - first))
        places.append(at)
        sequences.put(at, stop - start, end - first)
    if sequences.opened > (len(is_full) - full) * (1 - _GAIN):
        return pieces, packs
    kept = (np.cumsum(is_full) - 1)[packs[is_kept]]
    found = np.concatenate([kept, np.array(places, np.int64) + full])
    return np.concatenate([pieces[is_kept], _table_of(cut)]), found


class _Sequences:
    """Room that is left of sequences, for tokens and for images.

    A tree over them has the most room for either below each of its nodes.
    """

    def __init__(self, most: int, length: int, cap: int) -> None:
        self._whole = length, cap
        self._leaves = 1 << max(most - 1, 1).bit_length()
        self._tokens, self._images = [-1] * (2 * self._leaves), [-1] * (2 * self._leaves)
        self.opened = 0

    def open(self) -> int:
        """Return a new sequence."""
        self.opened += 1
        self._set(self.opened - 1, *self._whole)
        return self.opened - 1

    def first(self, tokens: int, images: int) -> int | None:
        """Return the first sequence with room."""
        if self._tokens[1] < tokens or self._images[1] < images:
            return None
        waiting = [1]
        while waiting:
            if (node := waiting.pop()) >= self._leaves:
                return node - self._leaves
            for child in (2 * node + 1, 2 * node):
                if self._tokens[child] >= tokens and self._images[child] >= images:
                    waiting.append(child)
        return None

    def roomiest(self) -> int:
        """Return the sequence with most room for tokens."""
        node = 1
        while node < self._leaves:
            node = max((2 * node, 2 * node + 1), key=self._tokens.__getitem__)
        return node - self._leaves

    def room(self, at: int) -> tuple[int, int]:
        """Return the room for tokens and images."""
        return self._tokens[at + self._leaves], self._images[at + self._leaves]

    def put(self, at: int, tokens: int, images: int) -> None:
        """Use some of the room."""
        room = self.room(at)
        self._set(at, room[0] - tokens, room[1] - images)

    def _set(self, at: int, tokens: int, images: int) -> None:
        node = at + self._leaves
        self._tokens[node], self._images[node] = tokens, images
        while node > 1:
            node //= 2
            self._tokens[node] = max(self._tokens[2 * node], self._tokens[2 * node + 1])
            self._images[node] = max(self._images[2 * node], self._images[2 * node + 1])


class PackedDataset(EpochDataset):
    """The sequences of a plan.

    A sequence is ``{"input_ids", "documents", "images", "image_positions"}``: the tokens as an int64 array of
    at most the plan's length; where each piece begins among them, then the number of tokens (``cu_seqlens``
    of attention kernels); the images, as the dataset gives them; and the first token of each.

    Args:
        dataset: the documents that were counted, ``InterleavedDataset(…, shuffle=False)``.
        plan: of `pack`, or the file where it is.
        tokenize: the same as for the counts.
        seed: of the order of sequences.
        shuffle: False gives them as they are in the plan.
        rank: None takes that of the documents, RANK of the environment, or 0.
        world_size: ranks there are; None takes that of the documents, WORLD_SIZE of the environment, or 1.

    Raises:
        ValueError: the documents are of another rank.
        DataError: the plan is of other documents. Reading raises it if the tokenizer is another.
    """

    def __init__(
        self,
        dataset: EpochDataset,
        plan: pa.Table | str,
        tokenize: Tokenize,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(rank, world_size, [dataset])
        table = read_small_table(plan) if isinstance(plan, str) else plan
        if (table.schema.metadata or {}).get(_ORDER) != dataset.order_digest.encode():
            raise DataError(f"{dataset!r}: the plan of sequences is of other documents: count and pack again")
        self.dataset, self._tokenize = dataset, tokenize
        self._seed = seed if shuffle else None
        self._pieces = np.stack([table.column(name).to_numpy() for name in _PLAN.names[1:]], axis=1)
        packs = table.column("pack").to_numpy()
        self._starts = np.concatenate([np.flatnonzero(np.diff(packs, prepend=-1)), [len(packs)]])
        self.is_forkable = dataset.is_forkable
        self._order = lru_cache(maxsize=2)(self._make_order)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.dataset!r}: {self.epoch_length} sequences>"

    @property
    def epoch_length(self) -> int:
        return len(self._starts) - 1

    @cached_property
    def order_digest(self) -> str:
        return digest_of(
            "packed", 1, self.dataset.order_digest, self._pieces.tolist(), self._starts.tolist(), self._seed
        )

    def fetch(self, epoch: int, positions: Positions) -> list[Any]:
        spans = [
            self._pieces[self._starts[number] : self._starts[number + 1]]
            for number in self._order(epoch)[positions].tolist()
        ]
        wanted = np.unique(np.concatenate([span[:, 0] for span in spans]))
        documents = dict(zip(wanted.tolist(), self.dataset.fetch(0, wanted), strict=True))
        tokens = {number: self._tokenize(document) for number, document in documents.items()}
        return [self._sequence(span, documents, tokens) for span in spans]

    def _sequence(
        self, span: Positions, documents: dict[int, Document], tokens: dict[int, Any]
    ) -> dict[str, Any]:
        parts, images, places, starts = [], [], [], [0]
        for number, start, stop, first, count in span.tolist():
            ids, image_places = tokens[number]
            shown = image_places[first : first + count]
            if stop > len(ids) or len(shown) < count or any(not start <= place < stop for place in shown):
                raise DataError(
                    f"{self.dataset!r}: document {documents[number]['sample_id']!r:.200} has other tokens "
                    "than when it was counted"
                )
            held = [item["image"] for item in documents[number]["items"] if item.get("image") is not None]
            parts.append(np.asarray(ids[start:stop], np.int64))
            images += held[first : first + count]
            places += [starts[-1] + place - start for place in shown]
            starts.append(starts[-1] + stop - start)
        return {
            "input_ids": np.concatenate(parts),
            "documents": np.array(starts, np.int64),
            "images": images,
            "image_positions": np.array(places, np.int64),
        }

    def _make_order(self, epoch: int) -> Positions:
        if self._seed is None:
            return np.arange(self.epoch_length)
        return permutation(self.epoch_length, "packs", self._seed, epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_order"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._order = lru_cache(maxsize=2)(self._make_order)
