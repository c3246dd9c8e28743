"""Filter chain: all filters of a shard as one step, and the base classes of filters.

`FilterChain` measures images once, then judges images, texts and samples. The judgement itself (`decide`)
needs scores alone: it says what several filters make of the items and samples of a table.

`ScoreFilter` is the base class of filters that judge images by their scores: a filter adds a name, settings
and a verdict. `TextFilter` is that of filters that judge texts, `SampleFilter` that of filters that judge
whole samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.filter import DROP_ITEM, DROP_SAMPLE, FLAG, Filter, RowColumns, S
from mm_assets.filters.measure import ImageMeasure, SampleMeasure
from mm_assets.filters.measures import MeasureSelection
from mm_assets.filters.scores import (
    ImageScore,
    ImageScores,
    SampleScore,
    SampleScores,
    score_rows,
    score_samples,
)
from mm_assets.filters.texts import ALWAYS, TEXT, TextScore
from mm_assets.formats.parquet.files import UnreadableFile
from mm_assets.model.errors import warn_user
from mm_assets.model.losses import Loss, with_errors
from mm_assets.model.nested_types import compact, take_rows
from mm_assets.model.samples import ROWS_CHANGED, InterleavedBatch, StepResult

_KEY_COLUMNS = ("sample_id", "position", "modality", "materialize_error", "source_ref")


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


class RowKeys:
    """Keys of the rows of a table: sample, position and modality of each; also its error and source.

    Args:
        table: an interleaved table, or the rows as mappings.
        columns: columns of the rows, for filters that look at any.
    """

    def __init__(
        self, table: pa.Table | Sequence[Mapping[str, Any]], columns: RowColumns | None = None
    ) -> None:
        self._table = table
        self.columns = columns

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        return self._rows[row]

    def at(self, rows: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        """Return some rows; where no other has been asked for, no other is looked at."""
        if isinstance(self._table, pa.Table) and "_rows" not in self.__dict__:
            return _row_keys(self._table, rows)
        return [self._rows[row] for row in rows]

    @cached_property
    def _is_image(self) -> Sequence[bool]:
        return [row["modality"] == "image" and row["materialize_error"] is None for row in self._rows]

    @cached_property
    def samples(self) -> Collection[list[int]]:
        """The rows of each sample."""
        samples: dict[str, list[int]] = {}
        for row, row_key in enumerate(self._rows):
            samples.setdefault(row_key["sample_id"], []).append(row)
        return samples.values()

    def images_among(self, rows: Iterable[int]) -> int:
        """Return how many of some rows are images without an error."""
        return sum(map(self._is_image.__getitem__, rows))

    @cached_property
    def _rows(self) -> Sequence[Mapping[str, Any]]:
        if not isinstance(self._table, pa.Table):
            return self._table
        return _row_keys(self._table)


def _row_keys(table: pa.Table, rows: Sequence[int] | None = None) -> list[Mapping[str, Any]]:
    columns = table.select([name for name in _KEY_COLUMNS if name in table.column_names])
    return (columns if rows is None else columns.take(pa.array(rows, pa.int64()))).to_pylist()


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
        self._known: dict[int, tuple[Filter[Any], Mapping[int, Refusal]]] = {}

    @cached_property
    def texts(self) -> Mapping[int, TextScore]:
        """The scores of the texts, by row."""
        return self._find_texts()

    def of(self, judge: Filter[Any]) -> Mapping[int, Refusal]:
        """Return the refusals of one filter, by row in the order of the rows."""
        if id(judge) not in self._known:
            scores: Mapping[int, Any] = self.texts if isinstance(judge, TextFilter) else self.scores
            refused = _refusals(judge, scores, self._columns_of)
            self._known[id(judge)] = judge, refused  # with the filter, so that no other gets its id
        return self._known[id(judge)][1]

    def _columns_of(self, rows: Sequence[int], names: Sequence[str]) -> pa.Table:
        assert self._columns is not None, "a filter looks at columns"
        return self._columns.of_items(rows, names)


def _refusals(
    judge: Filter[S], scores: Mapping[int, S], columns: Callable[[Sequence[int], Sequence[str]], pa.Table]
) -> dict[int, Refusal]:
    """Return what one filter has to say against scores, by their numbers; ``columns`` returns theirs."""
    judged = list(scores.values())
    if judged and (names := judge.columns()):
        reasons = judge.judged(judged, columns(list(scores), names))
    else:
        reasons = judge.verdicts(judged)
    refused = {number: reason for number, reason in zip(scores, reasons, strict=True) if reason is not None}
    values = judge.numbers([scores[number] for number in refused])
    return {
        number: Refusal(judge, reason, value)
        for (number, reason), value in zip(refused.items(), values, strict=True)
    }


def decide(
    images: Sequence[Filter[ImageScore]],
    samples: Sequence[Filter[Any]],
    row_keys: RowKeys,
    item_refusals: ItemRefusals,
    sample_scores: Callable[[], SampleScores],
) -> Decisions:
    """Return what filters decide, by the rules of `FilterChain`.

    Args:
        images: filters of images, in order.
        samples: filters of texts and of samples, in order.
        row_keys: all rows.
        item_refusals: what filters of images and texts say.
        sample_scores: returns those of the samples; called only if there are filters of samples.
    """
    texts = [judge for judge in samples if isinstance(judge, TextFilter)]
    samples = [judge for judge in samples if not isinstance(judge, TextFilter)]
    refusals, flags = _decide_items([*images, *texts], item_refusals)
    if any(refusal.filter.action == DROP_SAMPLE for refusal in refusals.values()):
        refusals |= _lost_with_samples(row_keys, refusals)
    if samples:
        left_texts = item_refusals.texts if texts else None
        more, sample_flags = _decide_samples(samples, row_keys, refusals, sample_scores(), left_texts)
        refusals |= more
        flags += sample_flags
    return Decisions(refusals, [(row, refusal) for row, refusal in flags if row not in refusals])


def _decide_items(
    filters: Sequence[Filter[Any]], item_refusals: ItemRefusals
) -> tuple[dict[int, Refusal], list[tuple[int, Refusal]]]:
    """Return the refusal that decides about each refused item, by row, and all flags with their rows."""
    refusals: dict[int, Refusal] = {}
    flags: list[tuple[int, Refusal]] = []
    # Those that drop samples come first: an item that another one drops must not hide from them.
    for judge in sorted(filters, key=lambda judge: judge.action != DROP_SAMPLE):
        if judge.action == FLAG:
            flags += item_refusals.of(judge).items()
        else:
            refusals = {**item_refusals.of(judge), **refusals}
    return refusals, flags


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


def _decide_samples(
    filters: Sequence[Filter[SampleScore]],
    row_keys: RowKeys,
    lost: Mapping[int, Refusal],
    known: SampleScores,
    texts: Mapping[int, TextScore] | None,
) -> tuple[dict[int, Refusal], list[tuple[int, Refusal]]]:
    """Return the refusals of all rows of refused samples, by row, and the flags of samples that stay.

    Args:
        lost: rows that filters of items drop.
        texts: the scores of all texts, by row; None where no filter of texts drops any.
    """
    samples = [left for rows in row_keys.samples if (left := [row for row in rows if row not in lost])]
    scores = [
        known.of(str(row_keys[rows[0]]["sample_id"])).left(
            row_keys.images_among(rows),
            None if texts is None else [texts[row].index for row in rows if row in texts],
        )
        for rows in samples
    ]

    def columns(numbers: Sequence[int], names: Sequence[str]) -> pa.Table:
        assert row_keys.columns is not None, "a filter looks at columns"
        ids = [row_keys[samples[number][0]]["sample_id"] for number in numbers]
        return row_keys.columns.of_samples(ids, names)

    refusals: dict[int, Refusal] = {}
    flags: list[tuple[int, Refusal]] = []
    for judge in sorted(filters, key=lambda judge: judge.action == FLAG):
        open_ = {n: scores[n] for n, rows in enumerate(samples) if rows[0] not in refusals}
        for index, refusal in _refusals(judge, open_, columns).items():
            first, *others = samples[index]
            if judge.action == FLAG:
                flags.append((first, refusal))
            else:
                refusals[first] = refusal
                refusals |= dict.fromkeys(others, refusal._replace(is_cause=False))
    return refusals, flags


@dataclass(frozen=True)
class SampleFilter(Filter[SampleScore]):
    """Refuses the samples for which `verdict` returns a reason.

    Images and texts of a sample are counted as the filters of items have left them.
    """

    actions = (DROP_SAMPLE, FLAG)
    kinds = (SampleScore,)


@dataclass(frozen=True)
class TextFilter(Filter[TextScore]):
    """Refuses the text rows for which `verdict` returns a reason.

    Where they are dropped, nothing else changes: positions keep their gaps, samples without texts stay.
    """

    actions = (DROP_ITEM, DROP_SAMPLE, FLAG)
    kinds = (TextScore,)

    def needs(self) -> tuple[str, ...]:
        return (*ALWAYS, *(TEXT + name for name in self.scores))


def text_scores(table: pa.Table, samples: SampleScores) -> dict[int, TextScore]:
    """Return the scores of the texts of a table, by row.

    Raises:
        ValueError: a sample has other texts than were scored: table and scores do not belong together.
    """
    is_text = pc.and_(pc.equal(table.column("modality"), "text"), pc.is_valid(table.column("text_content")))
    rows = pc.indices_nonzero(pc.and_(is_text, pc.is_null(table.column("materialize_error"))))
    by_sample: dict[str, list[int]] = {}
    for row, sample_id in zip(
        rows.to_pylist(), table.column("sample_id").take(rows).to_pylist(), strict=True
    ):
        by_sample.setdefault(sample_id, []).append(row)
    found: dict[int, TextScore] = {}
    for sample_id, texts in by_sample.items():
        score = samples.of(sample_id)
        if score.texts != len(texts):
            raise ValueError(
                f"sample {sample_id!r}: scores of {score.texts} texts, but it has {len(texts)}; "
                f"materialize {samples.asset} again"
            )
        found.update((row, score.text(index)) for index, row in enumerate(texts))
    return dict(sorted(found.items()))


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
    what they still have. What a filter with the action ``flag`` refuses stays, and is listed.

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
        """Return what these filters decide, see `decide`."""
        return decide(self.images, self.samples, row_keys, item_refusals, sample_scores)

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

    actions = (DROP_ITEM, DROP_SAMPLE, FLAG)
    kinds = (ImageScore,)

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        """Apply this filter alone."""
        return FilterChain((self,))(batch)
