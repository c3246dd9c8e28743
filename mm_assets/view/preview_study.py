"""Study of filters before they drop anything: what each would drop, alone and all together.

`study` makes one pass over the stored scores of some shards. It has these parts:

* `WhatIf`: counts, by the decisions that the graph itself would make.
* `Borderline`: which images and samples are nearest to the bounds of a filter, on both sides. `Nearest` keeps
  the few best of a stream in bounded memory.
* `contents_of`: what these look like, from curated Parquet, a few row groups at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import cache, cached_property
from operator import add, sub
from tempfile import TemporaryDirectory
from typing import Any, Final, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa

from mm_assets.accounting import CURATED, statistics_folder
from mm_assets.filters import FLAG, KEYS, Filter, TextFilter
from mm_assets.filters.chain import FilterChain, Mask
from mm_assets.filters.duplicates import DuplicateFilter
from mm_assets.filters.id_list import IdFilter, Marks
from mm_assets.filters.measure import DECODE_ERROR, Score, decoding
from mm_assets.filters.measures import names_of
from mm_assets.filters.registry import measures_for, opened
from mm_assets.filters.score_columns import ScoreColumns
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.filters.texts import TextPosition, TextScore
from mm_assets.formats.images import ImageInfo
from mm_assets.formats.names import partition_filename
from mm_assets.pool import WorkerFailure
from mm_assets.pool.workers import WorkerPool
from mm_assets.storage.files import exists, join
from mm_assets.view import Picture, description_of, picture
from mm_assets.view.preview_scores import Numbers, ScoredShard, StoredScores, distances, measured
from mm_assets.view.sample import Item, items_of, parquet_rows


@dataclass(frozen=True)
class Count:
    """Numbers of items, of the images and samples among them, and bytes of the images."""

    items: int = 0
    images: int = 0
    samples: int = 0
    nbytes: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*map(sub, astuple(self), astuple(other)))


@dataclass
class FilterCount:
    """What one filter does.

    Attributes:
        alone: what it drops where it is the only filter.
        only_it: what stays if it is left out of all filters, and goes with it.
        flagged: images or samples that it lists and keeps, where it is the only filter.
        marks: of a filter by lists of ids: what of them names something.
    """

    filter: Filter[Any]
    alone: Count = Count()
    only_it: Count = Count()
    flagged: int = 0
    marks: dict[str, Marks] = field(default_factory=dict)


@dataclass
class WhatIf:
    """Counts over the shards that were added.

    Attributes:
        given: what there is.
        unreadable: images of which no score could be measured; filters do not judge them.
        dropped: what all filters drop together.
        by_filter: in the order of the filters.
    """

    filters: Sequence[Filter[Any]]
    given: Count = Count()
    unreadable: int = 0
    dropped: Count = Count()
    by_filter: list[FilterCount] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.by_filter = [FilterCount(judge) for judge in self.filters]
        self._all = FilterChain.of(self.filters)
        self._alone = [FilterChain.of([judge]) for judge in self.filters]
        self._others = [FilterChain.of(f for f in self.filters if f is not judge) for judge in self.filters]

    def add(self, shard: ScoredShard) -> list[Mask]:
        """Count a shard; return which of its rows each filter alone drops or flags."""
        self.given += _count(shard, np.ones(len(shard.items), bool))
        self.unreadable += shard.images - len(shard.scores)
        dropped = _count(shard, shard.verdicts(self._all).dropped(self._all))
        self.dropped += dropped
        hit = []
        for count, alone, others in zip(self.by_filter, self._alone, self._others, strict=True):
            rows = shard.verdicts(alone).dropped(alone)
            count.alone += _count(shard, rows)
            if count.filter.action == FLAG:
                flagged = [row for row, _ in shard.verdicts(alone).decide(alone).flags]
                count.flagged += len(flagged)
                rows = rows.copy()
                rows[flagged] = True
            if isinstance(count.filter, IdFilter):
                shard.mark(count.filter, count.marks)
            count.only_it += dropped - _count(shard, shard.verdicts(others).dropped(others))
            hit.append(rows)
        return hit

    def merge(self, other: WhatIf) -> None:
        """Add the counts over other shards, of the same filters."""
        self.given += other.given
        self.unreadable += other.unreadable
        self.dropped += other.dropped
        for count, more in zip(self.by_filter, other.by_filter, strict=True):
            count.alone += more.alone
            count.only_it += more.only_it
            count.flagged += more.flagged
            for digest, marks in more.marks.items():
                count.marks[digest] = count.marks.get(digest, False) | marks


def _count(shard: ScoredShard, rows: Mask) -> Count:
    images, samples = shard.images, shard.images + shard.sample_rows
    return Count(
        int(shard.items[rows].sum()),
        int(np.count_nonzero(rows[:images])),
        int(np.count_nonzero(rows[images:samples])),
        int(shard.nbytes[rows].sum()),
    )


T = TypeVar("T")
_SEED = 0  # the same page for the same scores
_KINDS: Final = (ImageScore, SampleScore, TextScore)


class Nearest(Generic[T]):
    """The things of the least distances; those of the same distance are drawn by lot.

    Args:
        limit: how many are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._draw = np.random.default_rng(_SEED)
        self._places = np.zeros((2, 0))  # distance and lot of each
        self._kept: list[T] = []
        self._worst = (np.inf, np.inf)

    def add(self, distances: Numbers, thing: Callable[[int], T]) -> None:
        """Look at more.

        Args:
            distances: of each; what is infinitely far is not kept.
            thing: returns one by its index among them.
        """
        lots = self._draw.random(len(distances))
        worst, lot = self._worst
        is_near = np.isfinite(distances) & ((distances < worst) | ((distances == worst) & (lots < lot)))
        near = np.flatnonzero(is_near)
        near = near[np.lexsort((lots[near], distances[near]))][: self._limit]
        self._places = np.concatenate([self._places, [distances[near], lots[near]]], axis=1)
        self._kept += map(thing, near.tolist())
        if len(self._kept) >= 2 * self._limit:
            self._cut()

    def merge(self, other: Nearest[T]) -> None:
        """Add what another one keeps."""
        self._places = np.concatenate([self._places, other._places], axis=1)
        self._kept += other._kept
        self._cut()

    @property
    def things(self) -> list[T]:
        """What is kept, the nearest first."""
        self._cut()
        return list(self._kept)

    def _cut(self) -> None:
        distances, lots = self._places
        nearest = np.lexsort((lots, distances))[: self._limit]
        self._places = self._places[:, nearest]
        self._kept = [self._kept[at] for at in nearest.tolist()]
        if len(self._kept) == self._limit:
            self._worst = float(self._places[0, -1]), float(self._places[1, -1])


IMAGES_A_SIDE: Final = 12
SAMPLES_A_SIDE: Final = 5
SCORES_DRAWN: Final = 10_000  # that curves are made of: they are off by one percent at most, 19 times of 20


@dataclass(frozen=True)
class Pick:
    """One item or sample, and the number that the verdict on it was about.

    Args:
        file_name: of its shard.
        position: of the item; None for a sample.
        original: what stays in the place of a copy.
    """

    file_name: str
    sample_id: str
    position: int | None
    value: float | None
    original: Pick | None = None


@dataclass
class Borderline:
    """The items or samples that are nearest to the bounds of a filter; without bounds any.

    Attributes:
        kept: those that the filter keeps, the nearest first.
        refused: those that it drops or flags.
        scores: some scores, drawn by lot, that stand for all.
    """

    filter: Filter[Any]
    _sides: tuple[Nearest[Pick], Nearest[Pick]] = field(init=False)
    _drawn: Nearest[Any] = field(default_factory=lambda: Nearest(SCORES_DRAWN))

    def __post_init__(self) -> None:
        limit = SAMPLES_A_SIDE if self.is_of_samples else IMAGES_A_SIDE
        self._sides = Nearest(limit), Nearest(limit)
        self.count = 0

    @property
    def is_of_samples(self) -> bool:
        return self.kind is SampleScore

    @property
    def kind(self) -> type[Score]:
        """What it shows of what the filter judges."""
        if isinstance(self.filter, TextFilter):
            return TextScore
        return SampleScore if self.filter.kinds == (SampleScore,) else ImageScore

    @property
    def kept(self) -> Sequence[Pick]:
        return self._sides[0].things

    @property
    def refused(self) -> Sequence[Pick]:
        return self._sides[1].things

    @property
    def scores(self) -> Sequence[Any]:
        return self._drawn.things

    def add(self, shard: ScoredShard, hit: Mask, slim: Callable[[int], Any]) -> None:
        """Look at the items or samples of a shard.

        Args:
            hit: which rows this filter alone drops or flags.
            slim: returns one of these scores by its number, without what no filter looks at.
        """
        found: ScoreColumns[Any]
        if self.is_of_samples:
            owners = shard.row_keys.owners
            is_hit = np.zeros(len(shard.row_keys.samples), bool)
            is_hit[owners[hit]] = True
            found, rows = shard.judged_samples, shard.rows_of_samples
            is_refused = is_hit[owners[rows]]
        else:
            refusals = shard.item_refusals
            is_of_texts = isinstance(self.filter, TextFilter)
            found = refusals.text_columns if is_of_texts else refusals.judged_images
            rows = refusals.text_rows if is_of_texts else refusals.image_rows
            is_refused = np.zeros(len(rows), bool)
            is_refused[refusals.refused(self.filter).at] = True
        values = measured(self.filter, found)
        far = distances(self.filter, values)
        self.count += len(rows)
        self._drawn.add(np.zeros(len(rows)), slim)
        for side, is_wanted in zip(self._sides, (~is_refused, is_refused), strict=True):
            side.add(
                np.where(is_wanted, far, np.inf),
                lambda index: self._pick(shard, int(rows[index]), float(values[index])),
            )

    def merge(self, other: Borderline) -> None:
        """Add what was found in other shards."""
        self.count += other.count
        self._drawn.merge(other._drawn)
        for side, more in zip(self._sides, other._sides, strict=True):
            side.merge(more)

    def _pick(self, shard: ScoredShard, row: int, value: float) -> Pick:
        number = None if np.isnan(value) else value
        sample_id = shard.row_keys[row]["sample_id"]
        position = None if self.is_of_samples else shard.row_keys[row]["position"]
        original = None
        if isinstance(self.filter, DuplicateFilter) and (
            found := self.filter.found([(sample_id, position)])[0]
        ):
            file_name = f"{partition_filename(found['original_shard'])}.parquet"
            original = Pick(file_name, found["original_id"], found["original_position"], None)
        return Pick(shard.file_name, sample_id, position, number, original)


def _slim(scores: Sequence[Any], names: Collection[str]) -> Callable[[int], Any]:
    """Return what gives a score by its index, with no more values of texts than some measures need."""

    def slim(index: int) -> Any:
        score = scores[index]
        if isinstance(score, TextScore):
            return score.alone(names)
        if isinstance(score, SampleScore):
            return replace(score, values={name: score.values[name] for name in names if name in score.values})
        return score

    return slim


_PARTS: Final = 16  # that workers do; not their number, as the page would depend on it
_IMAGE_NUMBERS: Final = ("width", "height", "aspect_ratio", "byte_size")
_SAMPLE_NUMBERS: Final = ("images", "texts", "words", "images_per_word")


@dataclass
class Study:
    """What was found.

    Args:
        left_out: filters whose scores are not stored, with the number of shards that lack each measure.
        borderline: for each of the other filters.
        distributions: without filters: values of each stored score, drawn by lot if there are many.
    """

    counts: WhatIf
    left_out: Mapping[str, Mapping[str, int]]
    borderline: Sequence[Borderline] = ()
    distributions: Mapping[str, Numbers] = field(default_factory=dict)


@dataclass(frozen=True)
class _Job:
    """Some of the shards, which a worker looks at."""

    number: int
    stored: StoredScores
    shards: Sequence[str]
    filters: Sequence[Filter[Any]]
    measures: Sequence[Collection[str]]
    columns: Sequence[str]
    is_shown: bool


@dataclass
class _Part:
    """What was found in some of the shards.

    Args:
        drawn: scores of images, of samples, and of texts.
    """

    counts: WhatIf
    borderline: Sequence[Borderline]
    drawn: Sequence[Nearest[Any]] = field(
        default_factory=lambda: [Nearest(SCORES_DRAWN), Nearest(SCORES_DRAWN), Nearest(SCORES_DRAWN)]
    )

    @classmethod
    def of(cls, filters: Sequence[Filter[Any]], is_shown: bool) -> _Part:
        return cls(WhatIf(filters), [Borderline(judge) for judge in filters if is_shown])

    @cached_property
    def _needed(self) -> Mapping[type[Score], Collection[str]]:
        """The measures that filters of each kind look at, in order."""
        needed: dict[type[Score], dict[str, None]] = {kind: {} for kind in _KINDS}
        for found in self.borderline:
            needed[found.kind] |= dict.fromkeys(found.filter.needs())
        return needed

    def add(self, shard: ScoredShard, measures: Sequence[Collection[str]]) -> None:
        """Look at one more shard, without filters at the scores by some measures."""
        every_hit = self.counts.add(shard)
        judged = shard.judged() if self.borderline or not every_hit else {}
        slim = {kind: cache(_slim(scores, self._needed[kind])) for kind, scores in judged.items()}
        for found, hit in zip(self.borderline, every_hit, strict=False):
            found.add(shard, hit, slim[found.kind])
        if not every_hit:
            for side, kind, names in zip(self.drawn, _KINDS, measures, strict=True):
                side.add(np.zeros(len(judged[kind])), _slim(judged[kind], names))

    def merge(self, other: _Part) -> None:
        """Add what was found in other shards."""
        self.counts.merge(other.counts)
        for mine, theirs in zip(self.borderline, other.borderline, strict=True):
            mine.merge(theirs)
        for side, more in zip(self.drawn, other.drawn, strict=True):
            side.merge(more)


def study(
    stored: StoredScores,
    filters: Sequence[Filter[Any]],
    pool: WorkerPool | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    is_shown: bool = True,
) -> Study:
    """Return what filters would do to shards.

    Args:
        pool: workers, for many shards; None: it is done here. The result is the same.
        progress: called with the shards that are done, and their number.
        is_shown: whether anybody looks at what is near to bounds, and at curves.

    Raises:
        ValueError: in one line, for damaged scores and for filters that fail.
    """
    filters = opened(filters, statistics_folder(stored.root))
    for judge in filters:
        judge.refuse_missing_statistics()
    needed = measures_for(filters)
    missing = stored.missing(needed)
    left_out = {
        judge.name: lacking
        for judge in filters
        if (lacking := {name: missing[name] for name in judge.needs() if name in missing})
    }
    filters = [judge for judge in filters if judge.name not in left_out]
    measures: Sequence[Collection[str]] = stored.numbers()
    columns: Sequence[str] = ()
    if filters:
        of_images = [*names_of(needed.images), *([DECODE_ERROR] if decoding(needed.images) else [])]
        measures = [of_images, names_of(needed.samples), ()]
        columns = sorted({name for judge in filters for name in judge.columns()})
    done: dict[int, _Part] = {}
    with TemporaryDirectory() as folder:  # of lists of ids
        if columns:
            schemas = stored.schemas() if set(columns).difference(KEYS) else {}
            filters = [judge.fitted(schemas, (), folder) for judge in filters]
        parts = min(_PARTS, len(stored.shards))
        jobs = [
            _Job(n, stored, stored.shards[n::parts], filters, measures, columns, is_shown)
            for n in range(parts)
        ]
        results = ((job, _part_of(job)) for job in jobs) if pool is None else pool.map(_part_of, jobs)
        for job, part in results:
            if isinstance(part, WorkerFailure):
                raise ValueError(part.message)
            done[job.number] = part
            progress(sum(len(jobs[number].shards) for number in done), len(stored.shards))
    found = _Part.of(filters, is_shown)
    for number in sorted(done):  # the same page, whichever part was ready first
        found.merge(done[number])
    distributions = {} if filters else _distributions(found.drawn, measures)
    return Study(found.counts, left_out, found.borderline, distributions)


def _part_of(job: _Job) -> _Part:
    part = _Part.of(job.filters, job.is_shown)
    images, samples, texts = job.measures
    with _no_search_for_cycles():
        for file_name in job.shards:
            part.add(job.stored.read(file_name, images, samples, texts, job.columns), job.measures)
    return part


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Keep Python from looking for cycles, a fifth of the time: scores are many objects, and have none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _distributions(drawn: Sequence[Nearest[Any]], measures: Sequence[Collection[str]]) -> dict[str, Numbers]:
    found = {}
    for side, always, names in zip(drawn, (_IMAGE_NUMBERS, _SAMPLE_NUMBERS, ()), measures, strict=True):
        for name in (*always, *sorted(set(names) - {TextPosition.name})):
            values = [value for score in side.things if (value := score.get(name)) is not None]
            values = [value for value in values if value == value]
            if values:
                found[name] = np.array(values, np.float64)
    return found


IMAGES_OF_A_SAMPLE: Final = 4
_TEXTS_OF_A_SAMPLE: Final = 4
_SIDE: Final = 192  # pixels
_MOST_EMBEDDED: Final = 8 << 10


def contents_of(root: str, picks: Iterable[Pick]) -> dict[Pick, list[Item]]:
    """Return the item of each pick, or the first texts and images of its sample, rendered for a page.

    Below a storage root, nothing is returned for one whose curated file is gone, or has it no more.

    Raises:
        ShardError: a file is damaged.
    """
    by_file: dict[str, list[Pick]] = {}
    for pick in dict.fromkeys(picks):
        by_file.setdefault(pick.file_name, []).append(pick)
    found: dict[Pick, list[Item]] = {}
    for file_name, wanted in sorted(by_file.items()):
        uri = join(root, CURATED.folder, file_name)
        if exists(uri):
            for table in parquet_rows(uri, {pick.sample_id for pick in wanted}):
                for pick in wanted:
                    items = items_of([_rows_of(pick, table, found.get(pick, []))], _observe)
                    if items:
                        found.setdefault(pick, []).extend(items)
    return found


def _rows_of(pick: Pick, table: pa.Table, known: Iterable[Item]) -> pa.Table:
    """Return the rows that are shown, beside those that are known already."""
    room = {"image": IMAGES_OF_A_SAMPLE, "text": _TEXTS_OF_A_SAMPLE}
    for item in known:
        room[item.modality] -= 1
    chosen = []
    places = table.select(["sample_id", "position", "modality"]).to_pylist()
    for row, place in enumerate(places):
        if place["sample_id"] == pick.sample_id and _is_shown(pick, place, room):
            room[place["modality"]] -= 1
            chosen.append(row)
    return table.take(pa.array(chosen, pa.int64()))


def _is_shown(pick: Pick, place: Mapping[str, Any], room: Mapping[str, int]) -> bool:
    if pick.position is not None:
        return bool(place["modality"] in room and place["position"] == pick.position)
    return room.get(place["modality"], 0) > 0


def _observe(data: memoryview, info: ImageInfo) -> str:
    shown = picture(data, info, _MOST_EMBEDDED, _SIDE)
    return (Picture(shown.uri) if shown.uri else shown).html(description_of(info))
