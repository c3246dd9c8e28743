"""Filter chain: all filters of a shard as one step, and the base classes of filters.

`FilterChain` measures images once, then judges images, texts and samples. The judgement itself (`Verdicts`)
needs scores alone: it says what several filters make of the items and samples of a table, and asks each once.
`ScoreFilter` is the base class of filters that judge images by their scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters import DROP_ITEM, DROP_SAMPLE, FLAG, Filter, RowColumns, RowKeys, S, TextFilter
from mm_assets.filters.measure import ImageMeasure, SampleMeasure
from mm_assets.filters.measures import MeasureSelection
from mm_assets.filters.score_columns import (
    RemainingSamples,
    Rows,
    SampleScoreColumns,
    ScoreColumns,
    TextScoreColumns,
    text_scores,
)
from mm_assets.filters.scores import (
    ImageScore,
    ImageScores,
    SampleScore,
    SampleScores,
    score_rows,
    score_samples,
)
from mm_assets.filters.texts import TextScore
from mm_assets.formats.parquet import UnreadableFile
from mm_assets.model.errors import warn_user
from mm_assets.model.losses import Loss, with_errors
from mm_assets.model.nested_types import compact, take_rows
from mm_assets.model.samples import ROWS_CHANGED, InterleavedBatch, StepResult

Mask = npt.NDArray[np.bool_]


class Refusal(NamedTuple):
    """What one filter has to say against a row."""

    filter: Filter[Any]
    reason: str
    value: float | None
    is_cause: bool = True

    def loss(self, row_key: Mapping[str, Any]) -> Loss:
        """Return the ledger's entry for the row, given by the columns of `RowKeys`."""
        return Loss(
            row_key["sample_id"],
            row_key["position"],
            row_key["modality"],
            "flagged" if self.filter.action == FLAG else "filtered",
            self.filter.name,
            self.reason,
            self.value,
            self.filter.threshold,
            row_key.get("source_ref"),
            self.is_cause,
        )


@dataclass(frozen=True)
class Decisions:
    """What filters decide about the rows of a table.

    Args:
        refusals: the refusal that drops each dropped row, by row number.
        flags: refusals of rows that stay, with their numbers.
    """

    refusals: Mapping[int, Refusal]
    flags: Sequence[tuple[int, Refusal]]


class ItemRefusals:
    """What filters have to say against images and texts; each filter is asked once about each.

    Args:
        scores: the scores of the images that can be judged, by row.
        find_texts: returns those of the texts; called only if there are filters of texts.
        columns: columns of these rows, for filters that look at any.
    """

    def __init__(
        self,
        scores: Mapping[int, ImageScore],
        find_texts: Callable[[], Mapping[int, TextScore]] = dict,
        columns: RowColumns | None = None,
    ) -> None:
        self.scores = scores
        self._find_texts = find_texts
        self._columns = columns
        self._known: dict[int, tuple[Filter[Any], Reasons]] = {}

    @cached_property
    def judged_images(self) -> ScoreColumns[ImageScore]:
        """The same scores of the images in columns."""
        return ScoreColumns(list(self.scores.values()))

    @cached_property
    def text_columns(self) -> ScoreColumns[TextScore]:
        """Those of the texts in columns."""
        return TextScoreColumns(list(self.texts.values()))

    @cached_property
    def image_rows(self) -> Rows:
        """The rows of the images."""
        return np.fromiter(self.scores, np.int64, len(self.scores))

    @cached_property
    def text_rows(self) -> Rows:
        """The rows of the texts."""
        return np.fromiter(self.texts, np.int64, len(self.texts))

    @cached_property
    def texts(self) -> Mapping[int, TextScore]:
        """The scores of the texts, by row."""
        return self._find_texts()

    def of(self, judge: Filter[Any]) -> Mapping[int, Refusal]:
        """Return the refusals of one filter, by row in the order of the rows."""
        return _refusals(judge, self.refused(judge), self._of_kind(judge)[1], self._columns_of)

    def refused(self, judge: Filter[Any]) -> Reasons:
        """Return which rows a filter refuses, and why."""
        if id(judge) not in self._known:
            rows, judged = self._of_kind(judge)
            # With the filter, so that no other gets its id.
            self._known[id(judge)] = judge, Reasons.of(judge, rows, judged, self._columns_of)
        return self._known[id(judge)][1]

    def _of_kind(self, judge: Filter[Any]) -> tuple[Rows, ScoreColumns[Any]]:
        if isinstance(judge, TextFilter):
            return self.text_rows, self.text_columns
        return self.image_rows, self.judged_images

    def _columns_of(self, rows: Sequence[int], names: Sequence[str]) -> pa.Table:
        assert self._columns is not None, "a filter looks at columns"
        return self._columns.of_items(rows, names)


@dataclass(frozen=True)
class Reasons:
    """What one filter refuses.

    Args:
        at: the numbers of what is refused, among all that was judged.
        rows: its rows.
        reasons: why.
    """

    at: Rows
    rows: Rows
    reasons: Sequence[str]

    @classmethod
    def of(
        cls,
        judge: Filter[S],
        rows: Rows,
        judged: ScoreColumns[S],
        columns: Callable[[Sequence[int], Sequence[str]], pa.Table],
    ) -> Self:
        """Return what a filter has against scores, by their rows; ``columns`` returns columns of some."""
        if judged and (names := judge.columns()):
            reasons = judge.judged(judged, columns(rows.tolist(), names))
        else:
            reasons = judge.verdicts(judged)
        found = [at for at, reason in enumerate(reasons) if reason is not None]
        at = np.array(found, np.int64)
        return cls(at, rows[at], [reason for reason in reasons if reason is not None])


Columns = Callable[[Sequence[int], Sequence[str]], pa.Table]
"""Returns columns of some rows."""


def _refusals(
    judge: Filter[S], refused: Reasons, judged: ScoreColumns[S], columns: Columns
) -> dict[int, Refusal]:
    values = judge.judged_numbers(
        judged.some(refused.at), lambda: columns(refused.rows.tolist(), judge.columns())
    )
    return {
        row: Refusal(judge, reason, value)
        for row, reason, value in zip(refused.rows.tolist(), refused.reasons, values, strict=True)
    }


class Verdicts:
    """What filters make of the rows of a table; each is asked once about the same scores.

    Args:
        row_keys: all rows.
        item_refusals: what filters of images and texts say.
        sample_scores: returns the scores of the samples; called only if there are filters of samples.
    """

    def __init__(
        self, row_keys: RowKeys, item_refusals: ItemRefusals, sample_scores: Callable[[], SampleScores]
    ) -> None:
        self._row_keys = row_keys
        self._item_refusals = item_refusals
        self._sample_scores = cache(sample_scores)
        self._lost: dict[Any, Mask] = {}
        self._left: dict[Any, _Left] = {}
        self._refused: dict[Any, Reasons] = {}

    def dropped(self, chain: FilterChain) -> Mask:
        """Return which rows a chain drops, by its rules."""
        items, samples = chain.of_items, chain.of_samples
        lost = self._lost_with(items) | self._lost_with(chain.last)
        refused = [self._refused_by(judge, items).rows for judge in samples if judge.action != FLAG]
        if not any(map(len, refused)):
            return lost
        is_refused = np.zeros(len(self._row_keys.samples), bool)
        is_refused[self._left_by(items).numbers[np.concatenate(refused)]] = True
        return lost | is_refused[self._row_keys.owners]

    def decide(self, chain: FilterChain) -> Decisions:
        """Return what drops or flags each row that a chain has something against."""
        items, samples = chain.of_items, chain.of_samples
        refusals, flags = self._decide_items(items)
        for judge in sorted(samples, key=lambda judge: judge.action == FLAG):
            left = self._left_by(items)
            refused = self._refused_by(judge, items)
            for number, refusal in _refusals(judge, refused, left.scores, self._columns_of(left)).items():
                first, *others = left.rows[number]
                if judge.action == FLAG:
                    flags.append((first, refusal))
                elif first not in refusals:
                    refusals[first] = refusal
                    refusals |= dict.fromkeys(others, refusal._replace(is_cause=False))
        of_last, more_flags = self._decide_items(chain.last)
        refusals = of_last | refusals
        flags += more_flags
        return Decisions(refusals, [(row, refusal) for row, refusal in flags if row not in refusals])

    def _decide_items(
        self, filters: Iterable[Filter[Any]]
    ) -> tuple[dict[int, Refusal], list[tuple[int, Refusal]]]:
        """Return the refusal that decides about each row, by row, and all flags with their rows."""
        refusals: dict[int, Refusal] = {}
        flags: list[tuple[int, Refusal]] = []
        # Those that drop samples come first: an item that another one drops must not hide from them.
        for judge in sorted(filters, key=lambda judge: judge.action != DROP_SAMPLE):
            if judge.action == FLAG:
                flags += self._item_refusals.of(judge).items()
            else:
                refusals = {**self._item_refusals.of(judge), **refusals}
        if any(refusal.filter.action == DROP_SAMPLE for refusal in refusals.values()):
            refusals |= _lost_with_samples(self._row_keys, refusals)
        return refusals, flags

    def _lost_with(self, items: Sequence[Filter[Any]]) -> Mask:
        """Return which rows filters of items drop."""
        key = tuple(id(judge) for judge in items if judge.action != FLAG)
        if key not in self._lost:
            owners = self._row_keys.owners
            lost = np.zeros(len(owners), bool)
            for judge in (judge for judge in items if judge.action != FLAG):
                rows = self._item_refusals.refused(judge).rows
                lost[rows] = True
                if judge.action == DROP_SAMPLE:
                    lost |= np.isin(owners, owners[rows])
            self._lost[key] = lost
        return self._lost[key]

    def _left_by(self, items: Sequence[Filter[Any]]) -> _Left:
        """Return what filters of items leave."""
        has_texts = any(isinstance(judge, TextFilter) for judge in items)
        key = (has_texts, *(id(judge) for judge in items if judge.action != FLAG))
        if key not in self._left:
            lost = self._lost_with(items)
            self._left[key] = _Left.of(
                self._row_keys, lost, self._whole, self._item_refusals if has_texts else None
            )
        return self._left[key]

    def _refused_by(self, judge: Filter[Any], items: Sequence[Filter[Any]]) -> Reasons:
        """Return which of the samples that are left a filter refuses, by their numbers there."""
        left = self._left_by(items)
        key = id(judge), id(left)
        if key not in self._refused:
            numbers = np.arange(len(left.numbers))
            self._refused[key] = Reasons.of(judge, numbers, left.scores, self._columns_of(left))
        return self._refused[key]

    def _columns_of(self, left: _Left) -> Callable[[Sequence[int], Sequence[str]], pa.Table]:
        def columns(numbers: Sequence[int], names: Sequence[str]) -> pa.Table:
            assert self._row_keys.columns is not None, "a filter looks at columns"
            return self._row_keys.columns.of_samples([left.ids[number] for number in numbers], names)

        return columns

    @cached_property
    def _whole(self) -> _Whole:
        return _Whole(self._row_keys, self._sample_scores())


class _Whole(SampleScoreColumns):
    """The scores of all samples of a table, each looked for when it is asked for."""

    def __init__(self, row_keys: RowKeys, known: SampleScores) -> None:
        self.ids = [str(row_keys[rows[0]]["sample_id"]) for rows in row_keys.samples]
        super().__init__([known.of(sample_id) for sample_id in self.ids])


@dataclass(frozen=True)
class _Left:
    """The samples of which filters of items leave anything.

    Args:
        numbers: each by its number among all.
    """

    numbers: Rows
    ids: Sequence[str]
    scores: RemainingSamples
    _left: Mask
    _owners: Rows

    @classmethod
    def of(cls, row_keys: RowKeys, lost: Mask, whole: _Whole, texts: ItemRefusals | None) -> Self:
        owners, count = row_keys.owners, len(whole)
        numbers = np.flatnonzero(np.bincount(owners[~lost], minlength=count))
        images = np.bincount(owners[row_keys.is_image & ~lost], minlength=count)[numbers]
        places = of_texts = np.zeros(0, np.int64)
        if texts is not None:
            places = np.flatnonzero(~lost[texts.text_rows])
            of_texts = np.searchsorted(numbers, owners[texts.text_rows[places]])
        judged = None if texts is None else texts.text_columns
        scores = RemainingSamples(whole, numbers, images, judged, of_texts, places)
        return cls(numbers, [whole.ids[number] for number in numbers], scores, ~lost, owners)

    @cached_property
    def rows(self) -> Sequence[list[int]]:
        """The rows that are left of each."""
        rows = np.flatnonzero(self._left)
        rows = rows[np.argsort(self._owners[rows], kind="stable")]
        ends = np.flatnonzero(np.diff(self._owners[rows])) + 1
        return [part.tolist() for part in np.split(rows, ends)]


def _lost_with_samples(row_keys: RowKeys, refusals: Mapping[int, Refusal]) -> dict[int, Refusal]:
    """Return the refusals of all rows of the samples that an item takes with it, by row."""
    lost: dict[int, Refusal] = {}
    for rows in row_keys.samples:
        causes = [row for row in rows if row in refusals and refusals[row].filter.action == DROP_SAMPLE]
        if causes:
            first = refusals[causes[0]]
            one = "a text" if isinstance(first.filter, TextFilter) else "an image"
            beside = first._replace(reason=f"{one} of its sample: {first.reason}", is_cause=False)
            lost |= dict.fromkeys(rows, beside) | {row: refusals[row] for row in causes}
    return lost


SCORES = "scores"
"""Side input: the stored image scores of the shard."""
SAMPLE_SCORES = "sample_scores"
"""Side input: the stored sample scores of the shard."""
VERDICTS: Final = "verdicts"
"""Side input: the verdicts on duplicates of the shard; their location, and their digest or nothing."""

NO_MEASURES: Final = MeasureSelection()

Observer = Callable[[pa.Table, RowKeys, ItemRefusals, Callable[[], SampleScores]], None]


@dataclass(frozen=True)
class FilterChain:
    """Filters that judge the images and texts of a shard one after the other, then its samples.

    An item that a filter with the action ``drop_sample`` refuses takes its sample with it, whatever other
    filters say. Then the first filter that refuses an item drops it. The samples that are left are judged by
    what they still have, and then their images by filters that are last (`Filter.is_last`). What a filter
    with the action ``flag`` refuses stays, and is listed.

    Args:
        images: filters of images, in order.
        samples: filters that look at sample scores: those of texts and of samples, in order.
        image_measures: measures that they look at; so are ``sample_measures``.
        image_scores: stored scores (side inputs, see `bind`). Without them images are measured anew.
        sample_scores: likewise.
        observer: told the table, the keys of its rows and the scores, before filters decide.
    """

    images: tuple[Filter[ImageScore], ...] = ()
    samples: tuple[Filter[Any], ...] = ()
    image_measures: tuple[ImageMeasure, ...] = ()
    sample_measures: tuple[SampleMeasure, ...] = ()
    image_scores: ImageScores | None = field(default=None, compare=False, repr=False)
    sample_scores: SampleScores | None = field(default=None, compare=False, repr=False)
    observer: Observer | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, filters: Iterable[Filter[Any]], measures: MeasureSelection = NO_MEASURES) -> Self:
        """Return a chain of filters; without measures it judges by scores alone.

        Neither settings nor plugins are asked: a worker may know none.
        """
        filters = tuple(filters)
        return cls(
            tuple(made for made in filters if ImageScore in made.kinds),
            tuple(made for made in filters if {SampleScore, TextScore}.intersection(made.kinds)),
            measures.images,
            measures.samples,
        )

    @cached_property
    def of_items(self) -> tuple[Filter[Any], ...]:
        """The filters of images and texts, in order, but for those that are `last`."""
        return (
            *(judge for judge in self.images if not judge.is_last),
            *(judge for judge in self.samples if isinstance(judge, TextFilter)),
        )

    @cached_property
    def last(self) -> tuple[Filter[Any], ...]:
        """The filters of images that judge what all others keep."""
        return tuple(judge for judge in self.images if judge.is_last)

    @cached_property
    def of_samples(self) -> tuple[Filter[Any], ...]:
        """The filters of samples, in order."""
        return tuple(judge for judge in self.samples if not isinstance(judge, TextFilter))

    @property
    def parts(self) -> tuple[Any, ...]:
        """Filters and measures, one after the other."""
        return (*self.images, *self.samples, *self.image_measures, *self.sample_measures)

    @property
    def filters(self) -> tuple[Filter[Any], ...]:
        """All filters in order; one that judges images and samples is there once."""
        both: tuple[Filter[Any], ...] = (*self.images, *self.samples)
        return tuple({id(judge): judge for judge in both}.values())

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the rows that the filters look at."""
        return frozenset(name for judge in self.filters for name in judge.columns())

    def refuse_missing_statistics(self) -> None:
        """See `Filter.refuse_missing_statistics`."""
        for judge in self.filters:
            judge.refuse_missing_statistics()

    def fitted(self, shards: Mapping[str, pa.Schema], others: Iterable[pa.Schema], folder: str) -> Self:
        """Return the chain for the rows of some shards, see `Filter.fitted`."""
        others = list(others)
        made = {id(judge): judge.fitted(shards, others, folder) for judge in self.filters}
        return replace(
            self,
            images=tuple(made[id(judge)] for judge in self.images),
            samples=tuple(made[id(judge)] for judge in self.samples),
        )

    def bind(self, side: Mapping[str, tuple[str, str | None]]) -> Self:
        """Return the same filters with the stored scores of one shard.

        Damaged scores count as absent, with a warning that names the file: what they say is measured again.

        Args:
            side: side inputs by name, each as URI and digest.
        """
        bound: dict[str, Any] = {}
        for name, known, kind in (
            (SCORES, "image_scores", ImageScores),
            (SAMPLE_SCORES, "sample_scores", SampleScores),
        ):
            if name in side:
                try:
                    bound[known] = kind.read(*side[name])
                except (UnreadableFile, FileNotFoundError) as error:
                    warn_user(f"{error}: {'images' if name == SCORES else 'samples'} are measured again")
        if of_shard := side.get(VERDICTS):
            for name in ("images", "samples"):
                bound[name] = tuple(judge.bound(of_shard) for judge in getattr(self, name))
        return replace(self, **bound) if bound else self

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        scores, errors = self._image_scores(batch)
        columns = RowColumns(batch.data)
        table = with_errors(batch.data, errors)
        row_keys = RowKeys(table, columns)
        sample_scores = cache(lambda: self._sample_scores(table))
        item_refusals = ItemRefusals(scores, lambda: text_scores(table, sample_scores()), columns)
        if self.observer is not None:
            self.observer(table, row_keys, item_refusals, sample_scores)
        decisions = self.decide(row_keys, item_refusals, sample_scores)
        refusals = decisions.refusals
        flagged = row_keys.at([row for row, _ in decisions.flags])
        flags = tuple(r.loss(row_key) for (_, r), row_key in zip(decisions.flags, flagged, strict=True))
        counts = {ROWS_CHANGED: len(errors)} if errors else {}
        if not refusals:
            return StepResult(batch.with_data(table) if errors else batch, counts=counts, flags=flags)
        dropped = sorted(refusals)
        keep = np.ones(table.num_rows, bool)
        keep[dropped] = False
        removed = take_rows(table, dropped)
        kept = compact(take_rows(table, np.flatnonzero(keep)))
        lost = tuple(refusals[row].loss(p) for row, p in zip(dropped, row_keys.at(dropped), strict=True))
        return StepResult(batch.with_data(kept), lost, removed, counts, flags=flags)

    def decide(
        self, row_keys: RowKeys, item_refusals: ItemRefusals, sample_scores: Callable[[], SampleScores]
    ) -> Decisions:
        """Return what these filters decide."""
        return Verdicts(row_keys, item_refusals, sample_scores).decide(self)

    def _image_scores(self, batch: InterleavedBatch) -> tuple[dict[int, ImageScore], dict[int, str]]:
        """Return the scores of the images that can be judged, by row, and the errors of the others."""
        table = batch.data
        if not self.images:
            return {}, {}
        images = pc.indices_nonzero(
            pc.and_(
                pc.equal(table.column("modality"), "image"), pc.is_null(table.column("materialize_error"))
            )
        )
        rows = images.to_pylist()
        if not rows:
            return {}, {}
        if self.image_scores is not None and not self.image_scores.missing(self.image_measures):
            scores = self.image_scores.of(table, rows)
        else:
            scores = score_rows(table, rows, batch.measured, self.image_measures)
        found = dict(zip(rows, scores, strict=True))
        told = {row: score.error_for(self.image_measures) for row, score in found.items()}
        errors = {row: error for row, error in told.items() if error is not None}
        return {row: score for row, score in found.items() if row not in errors}, errors

    def _sample_scores(self, table: pa.Table) -> SampleScores:
        known = self.sample_scores
        if known is None or known.missing(self.sample_measures):
            return SampleScores(score_samples(table, self.sample_measures))
        return known


@dataclass(frozen=True)
class ScoreFilter(Filter[ImageScore]):
    """Refuses the image rows for which `verdict` returns a reason.

    Where they are dropped, nothing else changes: positions keep their gaps, samples without images stay, rows
    with an error stay for the policy. An image that cannot be read becomes an error row; it is not dropped.
    """

    actions: ClassVar[tuple[str, ...]] = (DROP_ITEM, DROP_SAMPLE, FLAG)
    kinds = (ImageScore,)

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        """Apply this filter alone."""
        return FilterChain((self,))(batch)
