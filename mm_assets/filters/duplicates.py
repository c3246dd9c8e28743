"""Filters that refuse duplicates, and the verdicts that they read.

Which images and documents are copies, and of what, is found out over all shards (`mm_assets.duplicates`) and
stored by shard. The filters read the verdicts on their shard and look at no score. So a shard is filtered
anew only if the verdicts on it have changed.

* `Verdicts`: those on some shards, in `SCHEMA`.
* `VerdictIndex`: the shards that there are verdicts on, and what they were found with.
* `DuplicateImages` drops images, `DuplicateDocuments` samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mm_assets.filters import DROP_ITEM, FLAG, Filter, FilterSettingError, S, SampleFilter, setting
from mm_assets.filters.chain import ScoreFilter
from mm_assets.filters.id_list import SortedIds, sorted_by_hash
from mm_assets.filters.measure import digest_of_scores
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UnreadableFile, publish_table, read_small_table
from mm_assets.model.errors import warn_user
from mm_assets.storage.files import join, remove
from mm_assets.storage.stamps import parallel_map

OFF, EXACT, NEAR = "off", "exact", "near"
MODES: Final = (OFF, EXACT, NEAR)

SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("position", pa.int32()),
        pa.field("original_id", pa.string(), nullable=False),
        pa.field("original_position", pa.int32()),
        pa.field("original_shard", pa.string(), nullable=False),
        pa.field("measure", pa.float32()),
    ]
)
"""Columns of verdicts: a row for each copy, with the item that stays in its place.

A position is null for a document. ``measure`` is the number of bits that hashes of images differ in, and the
similarity of documents; null for exact copies. The cosine of CLIP vectors is negated, to tell it from bits.
"""
MOST_BITS: Final = 64
"""Bits of 256 that hashes of near copies may differ in: pictures of more are alike by chance."""
LEAST_COSINE: Final = 0.8
"""Pictures of less have nothing in common but their kind, and bands would miss most of them."""

_INDEX_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.string(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("verdicts", pa.string(), nullable=False),
    ]
)
ASSET: Final = "duplicates"
"""The asset that verdicts are an input of others as, and their folder."""
NO_COPIES: Final = "none"
"""Version of this input where nothing of a shard is a copy."""
_INDEX: Final = "index.parquet"
_FOUND_WITH: Final = b"mm_assets:found_with"
HOW_TO_FIND: Final = "`mm-assets duplicates` finds them, once scores of all shards are stored"


def verdicts_uri(folder: str, shard: str) -> str:
    """Return where the verdicts on a shard are, in a folder of what was found out about the whole set."""
    return join(folder, ASSET, "shards", f"{partition_filename(shard)}.parquet")


@dataclass(frozen=True)
class VerdictIndex:
    """The shards that there are verdicts on.

    Attributes:
        found_with: settings by name.
        shards: of each shard the version of its curated rows, and the digest of its verdicts; empty: none is
            a copy.
    """

    found_with: Mapping[str, Any] = field(default_factory=dict)
    shards: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str) -> Self:
        """Return the index in a folder; an empty one where there is none or, with a warning, no sound one."""
        uri = join(folder, ASSET, _INDEX)
        try:
            table = read_small_table(uri)
            if not table.schema.equals(_INDEX_SCHEMA):
                raise UnreadableFile(f"{uri}: damaged: its columns are not those of verdicts")
        except FileNotFoundError:
            return cls()
        except UnreadableFile as error:
            warn_user(f"{error}: it counts as none; {HOW_TO_FIND}")
            return cls()
        shards, versions, verdicts = (table.column(name).to_pylist() for name in _INDEX_SCHEMA.names)
        found_with = json.loads((table.schema.metadata or {}).get(_FOUND_WITH, b"{}"))
        return cls(found_with, dict(zip(shards, zip(versions, verdicts, strict=True), strict=True)))

    def publish(self, folder: str) -> None:
        """Write the index; call it when all verdicts are there."""
        columns = [
            list(self.shards),
            [version for version, _ in self.shards.values()],
            [digest for _, digest in self.shards.values()],
        ]
        schema = _INDEX_SCHEMA.with_metadata({_FOUND_WITH: json.dumps(self.found_with).encode()})
        arrays = [pa.array(values, pa.string()) for values in columns]
        publish_table(join(folder, ASSET, _INDEX), pa.Table.from_arrays(arrays, schema=schema))

    @property
    def digest(self) -> str:
        """A digest of all verdicts."""
        return xxhash.xxh3_128_hexdigest(repr(sorted(self.shards.items())).encode("utf-8", "surrogatepass"))

    def fault(self, shard: str, version: str) -> str | None:
        """Return why there are no verdicts on a shard in this version, in one line; None if there are."""
        if shard not in self.shards:
            return f"no duplicates were looked for in it: {HOW_TO_FIND}"
        if self.is_outdated(shard):
            return f"what stays in place of its copies was retired: {HOW_TO_FIND}"
        if self.shards[shard][0] != version:
            return f"it was made anew since duplicates were looked for in it: {HOW_TO_FIND}"
        return None

    def is_outdated(self, shard: str) -> bool:
        """Return whether the verdicts on a shard name what has been retired since."""
        return self.shards.get(shard, ("?", ""))[0] == ""


def read_verdicts(uri: str, digest: str) -> pa.Table:
    """Return the verdicts on a shard.

    Raises:
        FileNotFoundError: there are none.
        UnreadableFile: the file is damaged, or has others than those with this digest.
    """
    try:
        table = read_small_table(uri)
    except UnreadableFile as error:
        raise UnreadableFile(f"{error}; {HOW_TO_FIND}") from error
    if digest_of_scores(table) != digest:
        raise UnreadableFile(f"{uri}: other verdicts than were found; {HOW_TO_FIND}")
    return table


def retire_verdicts(folder: str, shards: Collection[str]) -> int:
    """Remove the verdicts on some shards; those on shards with copies of anything in them are outdated.

    Returns:
        The number of other shards whose verdicts are outdated by that.
    """
    index = VerdictIndex.read(folder)
    left = {shard: found for shard, found in index.shards.items() if shard not in shards}
    with_copies = [shard for shard, (_, digest) in left.items() if digest]
    gone = pa.array(sorted(shards), pa.string())

    def is_outdated(shard: str) -> bool:
        try:
            table = read_verdicts(verdicts_uri(folder, shard), left[shard][1])
        except (UnreadableFile, FileNotFoundError):
            return True
        return bool(pc.any(pc.is_in(table.column("original_shard"), value_set=gone)).as_py())

    for shard, outdated in zip(with_copies, parallel_map(is_outdated, with_copies, folder), strict=True):
        if outdated:
            left[shard] = "", left[shard][1]
    outdated_now = sum(left[shard] != index.shards[shard] for shard in with_copies)
    if left != index.shards:
        replace(index, shards=left).publish(folder)
    parallel_map(lambda shard: remove(verdicts_uri(folder, shard)), list(shards), folder)
    return outdated_now


class Verdicts:
    """Verdicts on images or on documents.

    Args:
        table: in `SCHEMA`, of either.
        is_of_images: which of them count.
    """

    def __init__(self, table: pa.Table, is_of_images: bool) -> None:
        column = table.column("position")
        table = table.filter(column.is_valid() if is_of_images else column.is_null())
        if not is_of_images:
            table = table.drop_columns(["position"])
        self._table = sorted_by_hash(table)
        self._ids = SortedIds(self._table)

    def find(self, keys: Sequence[str]) -> list[dict[str, Any] | None]:
        """Return the row about each key; None for what is no copy."""
        rows = self._ids.find(keys)
        hits = iter(self._table.take(pa.array(rows[rows >= 0])).to_pylist())
        return [next(hits) if row >= 0 else None for row in rows.tolist()]


@lru_cache(maxsize=4)
def _of_shard(uri: str, digest: str | None, is_of_images: bool) -> Verdicts:
    return Verdicts(read_verdicts(uri, digest) if digest else SCHEMA.empty_table(), is_of_images)


@lru_cache(maxsize=2)
def _of_all(folder: str, digest: str, is_of_images: bool) -> Verdicts:
    """Return the verdicts on all shards; another ``digest`` of the index has them read again."""
    shards = [name for name, (_, digest) in VerdictIndex.read(folder).shards.items() if digest]
    tables = parallel_map(read_small_table, [verdicts_uri(folder, name) for name in shards], folder)
    return Verdicts(pa.concat_tables([SCHEMA.empty_table(), *tables]), is_of_images)


@dataclass(frozen=True)
class DuplicateFilter(Filter[S]):
    """Refuses what the verdicts say is a copy.

    Args:
        folder: of what was found out about the whole set, once the filter is `opened`.
        index: digest of the index of verdicts at that time.
        of_shard: location and digest of the verdicts on one shard, once it is `bound`.
    """

    is_of_images: ClassVar[bool]

    mode = OFF
    folder: str = field(default="", kw_only=True, compare=False, repr=False)
    index: str = field(default="", kw_only=True, compare=False, repr=False)
    of_shard: tuple[str, str | None] | None = field(default=None, kw_only=True, compare=False, repr=False)

    @classmethod
    def from_settings(cls, values: Mapping[str, Any], action: str = "") -> Self | None:
        mode = values.get(cls.settings()["mode"].name)
        return super().from_settings(values, action) if mode not in (None, "", OFF) else None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise FilterSettingError(
                self.settings()["mode"].name, f"it is one of {', '.join(MODES)}, not {self.mode!r}"
            )

    @property
    def threshold(self) -> str:
        """Settings as text: those that verdicts of this mode depend on."""
        return super().threshold if self.mode == NEAR else self.mode

    @property
    def found_with(self) -> dict[str, Any]:
        """The settings that verdicts depend on, by name."""
        return {known.name: getattr(self, name) for name, known in self.settings().items()}

    def opened(self, statistics: str = "") -> Self:
        if not statistics:
            return self
        return replace(self, folder=statistics, index=VerdictIndex.read(statistics).digest)

    def bound(self, verdicts: tuple[str, str | None]) -> Self:
        return replace(self, of_shard=verdicts)

    def was_found(self, index: VerdictIndex) -> bool:
        """Return whether the verdicts were found with the settings of this filter."""
        return all(index.found_with.get(name) == value for name, value in self.found_with.items())

    def refuse_missing_statistics(self) -> None:
        found = VerdictIndex.read(self.folder) if self.folder else VerdictIndex()
        name = self.settings()["mode"].name
        if not found.shards:
            raise FilterSettingError(name, f"no duplicates were looked for: {HOW_TO_FIND}")
        if not self.was_found(found):
            raise FilterSettingError(name, f"duplicates were looked for with other settings: {HOW_TO_FIND}")

    def verdict(self, score: Any) -> str | None:
        raise ValueError("duplicates are rows, not scores")

    def verdicts(self, scores: Sequence[Any]) -> Sequence[str | None]:
        return [self.verdict(score) for score in scores]

    def judged(self, scores: Sequence[Any], columns: pa.Table) -> Sequence[str | None]:
        return [None if row is None else self._reason(row) for row in self._found_in(columns)]

    def _found_in(self, columns: pa.Table) -> list[dict[str, Any] | None]:
        places = columns.column("position").to_pylist() if self.is_of_images else [None] * len(columns)
        return self.found(list(zip(columns.column("sample_id").to_pylist(), places, strict=True)))

    def found(self, places: Sequence[tuple[str, int | None]]) -> list[dict[str, Any] | None]:
        """Return the verdict on each sample id and position, as columns of `SCHEMA`; None for no copy."""
        known = (
            _of_all(self.folder, self.index, self.is_of_images)
            if self.of_shard is None
            else _of_shard(*self.of_shard, self.is_of_images)
        )
        return known.find(
            [sample_id if place is None else f"{place}:{sample_id}" for sample_id, place in places]
        )

    def judged_numbers(
        self, scores: Sequence[Any], columns: Callable[[], pa.Table]
    ) -> Sequence[float | None]:
        measures = [None if row is None else row["measure"] for row in self._found_in(columns())]
        return [None if measure is None else abs(measure) for measure in measures]

    def _reason(self, row: Mapping[str, Any]) -> str:
        position = row["original_position"]
        words = f"copy of {row['original_id']}" + ("" if position is None else f" [{position}]")
        return words if row["measure"] is None else f"{words}, {self._measured(row['measure'])}"

    def _measured(self, measure: float) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class DuplicateImages(DuplicateFilter[Any], ScoreFilter):
    """Refuses images that are copies of another one in any shard."""

    name = "dedup_images"
    is_of_images = True
    is_last = True  # a sample that another filter drops must not take with it what stays in place of copies
    actions = (DROP_ITEM, FLAG)  # a sample that goes would take with it what stays in place of other copies

    mode: str = setting(
        "dedup_images", str, OFF, "images dropped as copies: off, exact (equal files) or near (also alike)"
    )
    distance: int = setting(
        "dedup_distance",
        int,
        31,
        f"most bits of 256 that PDQ hashes of near copies differ in, 0 to {MOST_BITS}",
    )
    cosine: float = setting(
        "dedup_clip", float, 0.0, "least cosine (0..1) of the CLIP vectors of near copies; 0: not compared"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.distance <= MOST_BITS:
            raise FilterSettingError("dedup_distance", f"it is 0 to {MOST_BITS}, not {self.distance}")
        if self.cosine and not LEAST_COSINE <= self.cosine <= 1:
            raise FilterSettingError("dedup_clip", f"it is {LEAST_COSINE:g} to 1, not {self.cosine:g}")
        if self.cosine and self.mode != NEAR:
            raise FilterSettingError("dedup_clip", "only with dedup_images=near")

    def needs(self) -> tuple[str, ...]:
        near = ("perceptual_hash", "perceptual_quality") if self.mode == NEAR else ()
        return ("sha256", *near, *(("clip_embedding",) if self.cosine else ()))

    def columns(self) -> tuple[str, ...]:
        return ("sample_id", "position")

    def _measured(self, measure: float) -> str:
        return f"{measure:.0f} of 256 bits differ" if measure >= 0 else f"cosine {-measure:.3f}"


@dataclass(frozen=True)
class DuplicateDocuments(DuplicateFilter[Any], SampleFilter):
    """Refuses samples that are copies of another one in any shard."""

    name = "dedup_documents"
    is_of_images = False

    mode: str = setting(
        "dedup_documents",
        str,
        OFF,
        "samples dropped as copies: off, exact (equal texts and images) or near (also texts that are alike)",
    )
    similarity: float = setting(
        "dedup_jaccard", float, 0.8, "least Jaccard similarity (0..1) of the texts of near copies"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.similarity <= 1:
            raise FilterSettingError(
                "dedup_jaccard", f"it is above 0, and at most 1, not {self.similarity:g}"
            )

    def needs(self) -> tuple[str, ...]:
        return ("sha256", "minhash") if self.mode == NEAR else ("sha256",)

    def columns(self) -> tuple[str, ...]:
        return ("sample_id",)

    def _measured(self, measure: float) -> str:
        return f"similarity {measure:.2f}"


DEDUP: Final = (DuplicateImages.name, DuplicateDocuments.name)
"""Their names."""


def duplicate_filters(filters: Any) -> list[DuplicateFilter[Any]]:
    """Return those that refuse duplicates."""
    return [judge for judge in filters if isinstance(judge, DuplicateFilter)]
