"""All filters of a shard as one step: images are measured once, then images and samples are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.decisions import Decisions, ImageRefusals, RowKeys, decide
from mm_assets.filters.filter import Filter
from mm_assets.filters.image_score import score_rows
from mm_assets.filters.image_scores import ImageScore, ImageScores
from mm_assets.filters.measure_selection import MeasureSelection
from mm_assets.filters.measures.image_measure import ImageMeasure
from mm_assets.filters.sample_filter import SampleFilter
from mm_assets.filters.sample_measures.sample_measure import SampleMeasure
from mm_assets.filters.sample_scores import SampleScore, SampleScores, score_samples
from mm_assets.formats.parquet_file import UnreadableFile
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.buffers import compact, take_rows
from mm_assets.interleaved.notices import warn_user
from mm_assets.interleaved.policies import with_errors
from mm_assets.interleaved.steps import ROWS_CHANGED, StepResult

SCORES = "scores"
"""Side input: the stored image scores of the shard."""
SAMPLE_SCORES = "sample_scores"
"""Side input: the stored sample scores of the shard."""

NO_MEASURES: Final = MeasureSelection()

Observer = Callable[[pa.Table, RowKeys, ImageRefusals, Callable[[], SampleScores]], None]


@dataclass(frozen=True)
class FilterChain:
    """Filters that judge the images of a shard one after the other, then its samples.

    An image that a filter with the action ``drop_sample`` refuses takes its sample with it, whatever other
    filters say. Then the first filter that refuses an image drops it. The samples that are left are judged by
    what they still have. What a filter with the action ``flag`` refuses stays, and is listed.

    Args:
        images: filters of images, in order.
        samples: filters of samples, in order.
        image_measures: measures that they look at; so are ``sample_measures``.
        image_scores: stored scores (side inputs, see `bind`). Without them images are measured anew.
        sample_scores: likewise.
        observer: told the table, the keys of its rows and the scores, before filters decide.
    """

    images: tuple[Filter[ImageScore], ...] = ()
    samples: tuple[Filter[SampleScore], ...] = ()
    image_measures: tuple[ImageMeasure, ...] = ()
    sample_measures: tuple[SampleMeasure, ...] = ()
    image_scores: ImageScores | None = field(default=None, compare=False, repr=False)
    sample_scores: SampleScores | None = field(default=None, compare=False, repr=False)
    observer: Observer | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, filters: Iterable[Filter[Any]], measures: MeasureSelection = NO_MEASURES) -> Self:
        """Return a chain of filters of images and of samples; without measures it judges by scores alone.

        Neither settings nor plugins are asked: a worker may know none.
        """
        filters = tuple(filters)
        return cls(
            tuple(made for made in filters if not isinstance(made, SampleFilter)),
            tuple(made for made in filters if isinstance(made, SampleFilter)),
            measures.images,
            measures.samples,
        )

    @property
    def parts(self) -> tuple[Any, ...]:
        """Filters and measures, one after the other."""
        return (*self.images, *self.samples, *self.image_measures, *self.sample_measures)

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
        return replace(self, **bound) if bound else self

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        scores, errors = self._image_scores(batch)
        image_refusals = ImageRefusals(scores)
        table = with_errors(batch.data, errors)
        row_keys = RowKeys(table)
        sample_scores = cache(lambda: self._sample_scores(table))
        if self.observer is not None:
            self.observer(table, row_keys, image_refusals, sample_scores)
        decisions = self.decide(row_keys, image_refusals, sample_scores)
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
        self, row_keys: RowKeys, image_refusals: ImageRefusals, sample_scores: Callable[[], SampleScores]
    ) -> Decisions:
        """Return what these filters decide, see `decide`."""
        return decide(self.images, self.samples, row_keys, image_refusals, sample_scores)

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
