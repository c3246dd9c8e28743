"""What duplicates are looked for among: the images and documents of all shards, by their stored scores.

* `Items`: columns of numbers and ids, put together from shards and then ordered by preference.
* `Images`, `Documents`: what of the scores of a shard counts, and which of all items are copies of which.

10 million documents take 1.5 GiB of memory; their signatures, 2.2 GB, lie in a file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mm_assets.duplicates import (
    Clusters,
    Pairs,
    Words,
    firsts_of_equal,
    near_hashes,
    near_signatures,
    near_vectors,
)
from mm_assets.filters.measure import LEAST_QUALITY
from mm_assets.filters.minhash import SIGNATURE


class Items:
    """Images or documents, with columns that all shards have.

    Args:
        folder: for the columns until all shards are there: many small arrays would take twice the memory.
    """

    def __init__(self, folder: str) -> None:
        self._ids: list[pa.Array] = []
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._columns: dict[str, npt.NDArray[Any]] = {}  # an empty one of each

    def add(self, ids: pa.Array | pa.ChunkedArray, **columns: npt.NDArray[Any]) -> None:
        """Add the items of a shard."""
        self._ids += ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]
        for name, values in columns.items():
            self._columns.setdefault(name, values[:0])
            with (self._folder / name).open("ab") as file:
                file.write(np.ascontiguousarray(values).data)

    def ordered(self, best: Sequence[str], then: Sequence[str] = ()) -> OrderedItems:
        """Return the items in the order of preference, without the columns of ``best``; these are empty then.

        Args:
            best: columns, the greatest first.
            then: columns that decide behind shards and ids, the smallest first.
        """
        ids = pa.chunked_array(self._ids, pa.string())
        columns = {
            name: np.fromfile(self._folder / name, empty.dtype).reshape(-1, *empty.shape[1:])
            for name, empty in self._columns.items()
        }
        self._ids, self._columns = [], {}
        if not columns:
            return OrderedItems(ids, columns)
        table = pa.table({"id": ids, **{name: columns[name] for name in (*best, "shard", *then)}})
        keys = [
            *((name, "descending") for name in best),
            *((name, "ascending") for name in ("shard", "id", *then)),
        ]
        order = pc.sort_indices(table, sort_keys=keys)
        del table
        for name in best:
            del columns[name]
        ids = ids.take(order)
        pa.default_memory_pool().release_unused()
        places = order.to_numpy()
        for name in columns:
            columns[name] = columns[name][places]
        return OrderedItems(ids, columns)


@dataclass
class OrderedItems:
    """Items in the order of preference."""

    ids: pa.ChunkedArray
    columns: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.ids)

    def without(self, sample_ids: pa.Array) -> OrderedItems:
        """Return the items of other samples."""
        if not len(sample_ids) or not len(self):
            return self
        stays = pc.invert(pc.is_in(self.ids, value_set=sample_ids))
        mask = stays.to_numpy(zero_copy_only=False).astype(bool)
        return OrderedItems(
            self.ids.filter(stays), {name: column[mask] for name, column in self.columns.items()}
        )


class Images:
    """The images of all shards.

    Args:
        distance: most bits that hashes of near copies differ in; None: only equal files count.
        folder: for what is compared.
        cosine: least one of the CLIP vectors of near copies; 0: they are not compared.
    """

    def __init__(self, distance: int | None, folder: str, cosine: float = 0) -> None:
        self._items, self._distance, self._cosine = Items(folder), distance, cosine
        self._file = Path(tempfile.mkdtemp(dir=folder), "vectors")
        self._vectors = self._dimensions = 0

    def add(self, shard: int, scores: pa.Table, refused: Collection[tuple[str, int]] = ()) -> None:
        """Add the images of a shard that have no error.

        Args:
            scores: image scores, with those that are compared.
            refused: sample id and position of those that other filters drop.
        """
        is_sound = pc.and_(pc.is_null(scores.column("error")), pc.is_valid(scores.column("sha256")))
        scores = scores.filter(is_sound)
        if refused:
            places = zip(
                scores.column("sample_id").to_pylist(), scores.column("position").to_pylist(), strict=True
            )
            scores = scores.filter(pa.array([place not in refused for place in places], pa.bool_()))
        width, height = (scores.column(name).to_numpy().astype(np.int64) for name in ("width", "height"))
        hashes = np.zeros((len(scores), 4), np.uint64)
        says_something = np.zeros(len(scores), bool)
        if self._distance is not None:
            quality = pc.fill_null(scores.column("perceptual_quality"), 0).to_numpy()
            hex_ = pc.fill_null(scores.column("perceptual_hash"), "0" * 64)
            hashes = _words(hex_)
            says_something = quality >= LEAST_QUALITY
        self._items.add(
            scores.column("sample_id"),
            shard=np.full(len(scores), shard, np.int32),
            position=scores.column("position").to_numpy(),
            pixels=width * height,
            size=scores.column("byte_size").to_numpy(),
            file=_words(scores.column("sha256")),
            hash=hashes,
            says_something=says_something,
            vector=self._keep_vectors(scores),
        )

    def _keep_vectors(self, scores: pa.Table) -> npt.NDArray[np.int64]:
        """Write the CLIP vectors of images to the file; return the row of each, -1 where it has none."""
        rows = np.full(len(scores), -1, np.int64)
        if not self._cosine:
            return rows
        column = scores.column("clip_embedding").combine_chunks()
        is_there = column.is_valid().to_numpy(zero_copy_only=False).astype(bool)
        count = int(is_there.sum())
        if count:
            vectors = column.drop_null().flatten().to_numpy().reshape(count, -1).astype(np.float32)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.where(lengths > 0, lengths, 1)  # stored ones are rounded
            rows[is_there] = np.arange(self._vectors, self._vectors + count)
            self._vectors, self._dimensions = self._vectors + count, vectors.shape[1]
            with self._file.open("ab") as file:
                file.write(vectors.data)
        return rows

    def clusters(self, gone: pa.Array) -> tuple[OrderedItems, Clusters]:
        """Return the images in the order of preference, and their clusters.

        Args:
            gone: ids of samples whose images do not count.
        """
        items = self._items.ordered(("pixels", "size"), ("position",)).without(gone)
        if not len(items):
            return items, Clusters.of(np.zeros(0, np.int64), np.zeros(0, np.int64), Pairs.of([]))
        files, hashes, is_compared = (items.columns[name] for name in ("file", "hash", "says_something"))
        firsts = firsts_of_equal(np.where(is_compared[:, None], hashes, files))
        rows = items.columns.pop("vector")
        is_first = firsts == np.arange(len(firsts))
        nodes = np.flatnonzero(is_first & (is_compared | (rows >= 0)))
        found = []
        if self._distance is not None:
            hashed = np.flatnonzero(is_compared[nodes])
            found.append(near_hashes(hashes[nodes[hashed]], self._distance).among(hashed))
        if self._vectors:
            vectors = np.memmap(self._file, "<f4", "r", shape=(self._vectors, self._dimensions))
            shown = np.flatnonzero(rows[nodes] >= 0)
            near = near_vectors(vectors, rows[nodes[shown]], self._cosine).among(shown)
            found.append(replace(near, measure=-near.measure))
        pairs = Pairs.of(found)
        return items, Clusters.of(firsts, nodes, pairs).with_equal(files[:, 0], 0)


class Documents:
    """The documents of all shards.

    Args:
        similarity: least similarity of near copies; None: only equal texts and images count.
        folder: for what is compared.
    """

    def __init__(self, similarity: float | None, folder: str) -> None:
        self._items, self._similarity = Items(folder), similarity
        self._file = Path(tempfile.mkdtemp(dir=folder), "signatures")
        self._count = 0

    def add(self, shard: int, scores: pa.Table, images: pa.Table, refused: Collection[str] = ()) -> None:
        """Add the documents of a shard.

        Args:
            scores: sample scores, with those that are compared.
            images: image scores of the same shard, in order.
            refused: ids of those that other filters drop.
        """
        if refused:
            refused_ids = pa.array(sorted(refused), pa.string())
            scores = scores.filter(pc.invert(pc.is_in(scores.column("sample_id"), value_set=refused_ids)))
        contents = _contents(scores, images)
        compared = contents
        rows = np.full(len(scores), -1, np.int64)
        if self._similarity is not None:
            signatures = scores.column("minhash")
            has_signature = signatures.is_valid().to_numpy(zero_copy_only=False).astype(bool)
            known = signatures.drop_null().to_pylist()
            rows[has_signature] = np.arange(self._count, self._count + len(known))
            self._count += len(known)
            with self._file.open("ab") as file:
                file.write(b"".join(known))
            compared = contents.copy()
            digests = b"".join(map(xxhash.xxh3_128_digest, known))
            compared[has_signature] = np.frombuffer(digests, np.uint64).reshape(-1, 2)
        self._items.add(
            scores.column("sample_id"),
            shard=np.full(len(scores), shard, np.int32),
            images=scores.column("images").to_numpy(),
            words=scores.column("words").to_numpy(),
            content=contents[:, 0],
            compared=compared,
            signature=rows,
        )

    def clusters(self) -> tuple[OrderedItems, Clusters]:
        """Return the documents in the order of preference, and their clusters."""
        items = self._items.ordered(("images", "words"))
        if not len(items):
            return items, Clusters.of(np.zeros(0, np.int64), np.zeros(0, np.int64), Pairs.of([]))
        firsts = firsts_of_equal(items.columns.pop("compared"))
        rows = items.columns.pop("signature")
        nodes = np.flatnonzero((firsts == np.arange(len(firsts))) & (rows >= 0))
        pairs = Pairs.of([])
        if self._similarity is not None and len(nodes):
            signatures = np.memmap(self._file, "<u2", "r", shape=(self._count, SIGNATURE))
            pairs = near_signatures(signatures, rows[nodes], self._similarity)
        return items, Clusters.of(firsts, nodes, pairs).with_equal(items.columns["content"], 1)


def _contents(scores: pa.Table, images: pa.Table) -> Words:
    """Return a digest of texts and images of each document, as two words.

    One without either, or with an image that is not known, is equal to no other.
    """
    files: dict[str, str | None] = {}
    for sample_id, file in zip(
        images.column("sample_id").to_pylist(), images.column("sha256").to_pylist(), strict=True
    ):
        before = files.get(sample_id, "")
        files[sample_id] = None if file is None or before is None else before + file
    parts = []
    for sample_id, texts in zip(
        scores.column("sample_id").to_pylist(), scores.column("text_digest").to_pylist(), strict=True
    ):
        beside = files.get(sample_id, "")
        is_known = beside is not None and (texts or beside)
        content = f"{texts or ''} {beside}" if is_known else f"of {sample_id}"
        parts.append(xxhash.xxh3_128_digest(content.encode("utf-8", "surrogatepass")))
    return np.frombuffer(b"".join(parts), np.uint64).reshape(-1, 2)


def _words(column: pa.ChunkedArray) -> Words:
    """Return values of 64 hexadecimal digits as four words each."""
    return np.frombuffer(bytes.fromhex("".join(column.to_pylist())), np.uint64).reshape(-1, 4)
