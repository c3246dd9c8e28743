"""Finding of duplicates among all shards of a storage, and the publishing of the verdicts on each.

What is compared are stored scores: nothing is decoded, and no image or text is read. 10 million documents
take 1.5 GiB of memory; their signatures, 2.2 GB, lie in a file.

* Documents come first, then the images of those that stay: a document that goes takes no picture with it that
  is kept nowhere else. What other filters drop counts for nothing, for the same reason, and copies of images
  are dropped last (`Filter.is_last`).
* Preferred are documents with more images, then with more words; images with more pixels, then with more
  bytes; then what is in the first shard by its name: names mostly grow, so equal copies in new shards change
  nothing in the old ones; then the smallest sample id and position.
* Equal are images with the same SHA-256, and documents with the same texts and images. Alike are images by
  the distance of their PDQ hashes, where these say something (quality `LEAST_QUALITY`), or by the cosine of
  their CLIP vectors; documents by the similarity of their MinHash signatures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mm_assets.accounting import CURATED, DERIVED_FOLDERS, statistics_folder
from mm_assets.accounting.accounts import Ledger
from mm_assets.duplicates import (
    Clusters,
    Pairs,
    Words,
    firsts_of_equal,
    near_hashes,
    near_signatures,
    near_vectors,
)
from mm_assets.filters import FLAG, KEYS, Filter
from mm_assets.filters.chain import FilterChain
from mm_assets.filters.duplicates import (
    HOW_TO_FIND,
    NEAR,
    SCHEMA,
    DuplicateDocuments,
    DuplicateFilter,
    DuplicateImages,
    VerdictIndex,
    duplicate_filters,
    read_verdicts,
    verdicts_uri,
)
from mm_assets.filters.measure import DECODE_ERROR, LEAST_QUALITY, decoding, digest_of_scores
from mm_assets.filters.measures import MeasureSelection, names_of
from mm_assets.filters.minhash import SIGNATURE
from mm_assets.filters.registry import measures_for, opened
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UnreadableFile, publish_table, read_small_table
from mm_assets.model.errors import counted, warn_user
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import join
from mm_assets.storage.stamps import parallel_map
from mm_assets.view.preview_scores import IMAGES, SAMPLES, StoredScores
from mm_assets.view.statistics import left_out_lines, require_scores

_AHEAD: Final = 8  # shards that are read while others are looked at
_LARGEST: Final = 5  # clusters that are named
_SHARD: Final = "number of its shard"  # column of verdicts until they are published
_NO_CLUSTERS: Final = Clusters.of(np.zeros(0, np.int64), np.zeros(0, np.int64), Pairs.of([]))


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
            return items, _NO_CLUSTERS
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
            return items, _NO_CLUSTERS
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


@dataclass(frozen=True)
class Found:
    """What was found of images or documents.

    Attributes:
        what: ``image`` or ``document``.
        items: number of those that were compared.
        exact: copies that are equal to what stays; ``near`` are the others.
        clusters: number of items that stay and have copies.
        largest: the largest clusters: the name of what stays, and the number of its copies.
    """

    what: str
    items: int
    exact: int
    near: int
    clusters: int
    largest: Sequence[tuple[str, int]]

    def lines(self) -> list[str]:
        """Return what was found, for people."""
        copies = self.exact + self.near
        share = f" ({copies / self.items:.1%})" if self.items else ""
        lines = [
            f"{self.what}s: {counted(copies, 'copy', 'copies')} of {counted(self.items, self.what)}{share}, "
            f"{self.exact} exact and {self.near} near, in {counted(self.clusters, 'cluster')}"
        ]
        lines += [f"  {counted(count, 'copy', 'copies')} of {name}" for name, count in self.largest]
        return lines


@dataclass(frozen=True)
class FoundDuplicates:
    """What was found of all.

    Attributes:
        changed: shards with other verdicts than before; of a first time, all.
        left_out: lines on shards without scores of their rows as they are.
    """

    found: Sequence[Found] = ()
    shards: int = 0
    changed: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Return what was found, for people."""
        if not self.found:
            return []
        changed = f"{len(self.changed)} of {counted(self.shards, 'shard')} with other verdicts than before"
        return [*(line for found in self.found for line in found.lines()), changed, *self.left_out]


def find_duplicates(
    root: str, filters: Iterable[Filter[Any]], progress: Callable[[int, int], None] = lambda done, of: None
) -> FoundDuplicates:
    """Find the duplicates that filters drop, among all shards, and publish the verdicts.

    Args:
        root: storage root.
        filters: those that are turned on; what the others drop is not compared.
        progress: called with the shards that are read, and their number.

    Raises:
        StatisticError: scores that are compared are not stored.
        ValueError: there are no scores, or a file of them is damaged; in one line.
    """
    filters = opened(filters, statistics_folder(root))
    judges = duplicate_filters(filters)
    if not judges:
        return FoundDuplicates()
    stored = StoredScores(root, most=None)
    measures = measures_for(filters)
    require_scores(stored, measures)
    for judge in filters:
        if not isinstance(judge, DuplicateFilter):
            judge.refuse_missing_statistics()
    others = _others(filters)
    stems = [name.removesuffix(".parquet") for name in stored.shards]
    records = Ledger(root).records_by_name(CURATED.asset, stems)
    shards = [records[stem].key for stem in stems]
    of_documents, of_images = _judge(judges, DuplicateDocuments), _judge(judges, DuplicateImages)
    found: list[Found] = []
    verdicts = [SCHEMA.append(pa.field(_SHARD, pa.int32())).empty_table()]
    with tempfile.TemporaryDirectory(prefix="mm-assets-") as folder:
        if others:
            is_of_columns = any(set(judge.columns()).difference(KEYS) for judge in others)
            schemas = stored.schemas() if is_of_columns else {}
            others = [judge.fitted(schemas, (), folder) for judge in others]
        similarity = of_documents.similarity if of_documents and of_documents.mode == NEAR else None
        distance = of_images.distance if of_images and of_images.mode == NEAR else None
        documents = Documents(similarity, folder)
        images = Images(distance, folder, of_images.cosine if of_images else 0)
        for number, (image_scores, sample_scores) in enumerate(_read(stored, measures)):
            refused_images, refused_samples = _refused(others, stored, stored.shards[number], measures)
            if of_documents:
                documents.add(number, sample_scores, image_scores, refused_samples)
            if of_images:
                images.add(number, image_scores, refused_images)
            progress(number + 1, len(shards))
        if of_documents:
            verdicts.append(_noted("document", found, shards, *documents.clusters()))
        if of_images:
            gone = verdicts[-1].column("sample_id").combine_chunks()
            verdicts.append(_noted("image", found, shards, *images.clusters(gone)))
    versions = {records[stem].key: records[stem].version for stem in stems}
    changed = _publish(statistics_folder(root), found_with(filters), pa.concat_tables(verdicts), versions)
    return FoundDuplicates(found, len(shards), changed, left_out_lines(stored))


def has_verdicts(root: str, filters: Iterable[Filter[Any]], shards: Iterable[str]) -> bool:
    """Return whether filters have verdicts on the duplicates in shards as these are now."""
    filters = list(filters)
    if not duplicate_filters(filters):
        return True
    index = VerdictIndex.read(statistics_folder(root))
    names = {partition_filename(shard): shard for shard in shards}
    records = Ledger(root).records_by_name(CURATED.asset, names)
    return index.found_with == found_with(filters) and not any(
        index.fault(names[name], record.version) for name, record in records.items()
    )


def found_with(filters: Iterable[Filter[Any]]) -> dict[str, Any]:
    """Return what verdicts depend on: settings by name, and those of the other filters, which come first."""
    filters = list(filters)
    own = {name: value for judge in duplicate_filters(filters) for name, value in judge.found_with.items()}
    others = {judge.name: f"{judge.threshold} {judge.version}".strip() for judge in _others(filters)}
    return {**own, "others": others}


def _others(filters: Iterable[Filter[Any]]) -> list[Filter[Any]]:
    """Return the filters that drop what is not compared."""
    return [judge for judge in filters if not isinstance(judge, DuplicateFilter) and judge.action != FLAG]


def _judge(judges: Iterable[Filter[Any]], kind: type[Any]) -> Any:
    return next((judge for judge in judges if isinstance(judge, kind)), None)


_OF_IMAGES: Final = (
    *("sample_id", "position", "width", "height", "byte_size", "error"),
    *("sha256", "perceptual_hash", "perceptual_quality", "clip_embedding"),
)
_OF_SAMPLES: Final = ("sample_id", "images", "words", "text_digest", "minhash")


def _read(stored: StoredScores, measures: MeasureSelection) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield the scores of the images and samples of each shard."""
    compared = {"sha256", "perceptual_hash", "perceptual_quality", "clip_embedding", "minhash"}
    absent = compared.difference(measures.names)
    names = [[name for name in of if name not in absent] for of in (_OF_IMAGES, _OF_SAMPLES)]

    def read(file_name: str) -> tuple[pa.Table, pa.Table]:
        images, samples = (
            read_small_table(join(stored.root, DERIVED_FOLDERS[asset], file_name), columns)
            for asset, columns in zip((IMAGES, SAMPLES), names, strict=True)
        )
        return images, samples

    with ThreadPoolExecutor(_AHEAD) as pool:
        for start in range(0, len(stored.shards), _AHEAD):
            yield from pool.map(read, stored.shards[start : start + _AHEAD])


def _refused(
    filters: Sequence[Filter[Any]], stored: StoredScores, file_name: str, measures: MeasureSelection
) -> tuple[set[tuple[str, int]], set[str]]:
    """Return what other filters drop of a shard: sample id and position of images, and ids of samples."""
    if not filters:
        return set(), set()
    of_images = [*names_of(measures.images), *([DECODE_ERROR] if decoding(measures.images) else [])]
    columns = sorted({name for judge in filters for name in judge.columns()})
    shard = stored.read(file_name, of_images, names_of(measures.samples), columns=columns)
    chain = FilterChain.of(filters)
    rows = shard.row_keys.at(np.flatnonzero(shard.verdicts(chain).dropped(chain)).tolist())
    images = {(row["sample_id"], row["position"]) for row in rows if row["modality"] == "image"}
    return images, {row["sample_id"] for row in rows if row["modality"] == "metadata"}


def _noted(
    what: str, found: list[Found], shards: Sequence[str], items: OrderedItems, clusters: Clusters
) -> pa.Table:
    """Return the verdicts on images or documents, by shard, and note what was found."""
    copies = clusters.copies
    survivors = clusters.survivors[copies]
    measures = clusters.measures[copies]
    exact = int(np.isnan(measures).sum())
    of_cluster, counts = np.unique(survivors, return_counts=True)
    largest = np.lexsort((of_cluster, -counts))[:_LARGEST]
    names = items.ids.take(pa.array(of_cluster[largest])).to_pylist()
    if "position" in items.columns and names:
        places = items.columns["position"][of_cluster[largest]].tolist()
        names = [f"{name} [{place}]" for name, place in zip(names, places, strict=True)]
    sizes = zip(names, counts[largest].tolist(), strict=True)
    found.append(Found(what, len(items), exact, len(copies) - exact, len(of_cluster), tuple(sizes)))
    shard, positions = items.columns["shard"], items.columns.get("position")
    return pa.table(
        [
            items.ids.take(pa.array(copies)),
            pa.nulls(len(copies), pa.int32()) if positions is None else pa.array(positions[copies]),
            items.ids.take(pa.array(survivors)),
            pa.nulls(len(copies), pa.int32()) if positions is None else pa.array(positions[survivors]),
            pa.array(shards, pa.string()).take(pa.array(shard[survivors])),
            pa.array(measures, mask=np.isnan(measures)),
        ],
        schema=SCHEMA,
    ).append_column(_SHARD, pa.array(shard[copies]))


def _publish(
    folder: str, settings: Mapping[str, Any], verdicts: pa.Table, versions: Mapping[str, str]
) -> list[str]:
    """Publish the verdicts on each shard that are not as before, then the index; return these shards.

    Verdicts that are stored no more, or are damaged, are published again.

    Args:
        settings: what they were found with.
        verdicts: on all shards.
        versions: of the curated rows of each shard, in the order of their numbers.
    """
    before = VerdictIndex.read(folder).shards
    numbers = verdicts.column(_SHARD).to_numpy()
    order = np.argsort(numbers, kind="stable")
    verdicts = verdicts.drop_columns([_SHARD]).take(pa.array(order)).combine_chunks()
    ends = np.searchsorted(numbers[order], np.arange(len(versions)), "right").tolist()
    published: dict[str, tuple[str, str]] = {}
    changed, unchanged = [], dict[str, pa.Table]()
    for shard, start, end in zip(versions, [0, *ends], ends, strict=False):
        of_shard = verdicts.slice(start, end - start)
        digest = digest_of_scores(of_shard) if len(of_shard) else ""
        if before.get(shard, (None, None))[1] != digest:
            changed.append(shard)
            if digest:
                publish_table(verdicts_uri(folder, shard), of_shard)
        elif digest:
            unchanged[shard] = of_shard
        published[shard] = versions[shard], digest

    def mend(shard: str) -> None:
        try:
            read_verdicts(verdicts_uri(folder, shard), published[shard][1])
        except (UnreadableFile, FileNotFoundError) as error:
            publish_table(verdicts_uri(folder, shard), unchanged[shard])
            warn_user(f"{error_line(error).removesuffix(f'; {HOW_TO_FIND}')}: written anew")

    parallel_map(mend, unchanged, folder)
    VerdictIndex(settings, published).publish(folder)
    return changed
