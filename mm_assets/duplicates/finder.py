"""Finding of duplicates among all shards of a storage, and the publishing of the verdicts on each.

What is compared are stored scores: nothing is decoded, and no image or text is read.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mm_assets.accounting import CURATED, DERIVED_FOLDERS, statistics_folder
from mm_assets.accounting.accounts import Ledger
from mm_assets.duplicates import Clusters
from mm_assets.duplicates.items import Documents, Images, OrderedItems
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
from mm_assets.filters.measure import DECODE_ERROR, decoding, digest_of_scores
from mm_assets.filters.measures import MeasureSelection, names_of
from mm_assets.filters.registry import measures_for, opened
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UnreadableFile, publish_table, read_small_table
from mm_assets.model.errors import counted, warn_user
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import join
from mm_assets.storage.stamps import parallel_map
from mm_assets.view.preview_scores import IMAGES, SAMPLES, StoredScores
from mm_assets.view.statistics import require_scores

_AHEAD: Final = 8  # shards that are read while others are looked at
_LARGEST: Final = 5  # clusters that are named
_SHARD: Final = "number of its shard"  # column of verdicts until they are published


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
        left_out: shards without scores of their rows as they are, by the reason.
    """

    found: Sequence[Found] = ()
    shards: int = 0
    changed: Sequence[str] = ()
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return what was found, for people."""
        if not self.found:
            return []
        left_out = [
            f"without {counted(len(shards), 'shard')} {reason}" for reason, shards in self.left_out.items()
        ]
        changed = f"{len(self.changed)} of {counted(self.shards, 'shard')} with other verdicts than before"
        return [*(line for found in self.found for line in found.lines()), changed, *left_out]


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
        documents, images = (
            Documents(similarity, folder),
            Images(distance, folder, of_images.cosine if of_images else 0),
        )
        for number, (image_scores, sample_scores) in enumerate(_read(stored, measures)):
            refused = _Refused.by(others, stored, stored.shards[number], measures)
            if of_documents:
                documents.add(number, sample_scores, image_scores, refused.samples)
            if of_images:
                images.add(number, image_scores, refused.images)
            progress(number + 1, len(shards))
        if of_documents:
            verdicts.append(_noted("document", found, shards, *documents.clusters()))
        if of_images:
            gone = verdicts[-1].column("sample_id").combine_chunks()
            verdicts.append(_noted("image", found, shards, *images.clusters(gone)))
    versions = {records[stem].key: records[stem].version for stem in stems}
    changed = _publish(statistics_folder(root), found_with(filters), pa.concat_tables(verdicts), versions)
    return FoundDuplicates(found, len(shards), changed, stored.left_out)


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


@dataclass(frozen=True)
class _Refused:
    """What other filters drop of a shard.

    Attributes:
        images: sample id and position of each image.
        samples: ids of samples.
    """

    images: frozenset[tuple[str, int]] = frozenset()
    samples: frozenset[str] = frozenset()

    @classmethod
    def by(
        cls,
        filters: Sequence[Filter[Any]],
        stored: StoredScores,
        file_name: str,
        measures: MeasureSelection,
    ) -> _Refused:
        if not filters:
            return cls()
        of_images = [*names_of(measures.images), *([DECODE_ERROR] if decoding(measures.images) else [])]
        columns = sorted({name for judge in filters for name in judge.columns()})
        shard = stored.read(file_name, of_images, names_of(measures.samples), columns=columns)
        chain = FilterChain.of(filters)
        rows = shard.row_keys.at(np.flatnonzero(shard.verdicts(chain).dropped(chain)).tolist())
        images = {(row["sample_id"], row["position"]) for row in rows if row["modality"] == "image"}
        samples = {row["sample_id"] for row in rows if row["modality"] == "metadata"}
        return cls(frozenset(images), frozenset(samples))


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
