"""All filters of a shard as one step: images are measured once, then images and samples are judged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.filter import DROP_SAMPLE, FLAG, Filter
from mm_assets.filters.image_score import score_rows
from mm_assets.filters.image_scores import ImageScore, ImageScores
from mm_assets.filters.measures.image_measure import ImageMeasure
from mm_assets.filters.sample_measures.sample_measure import SampleMeasure
from mm_assets.filters.sample_scores import SampleScore, SampleScores, score_samples
from mm_assets.formats.parquet_file import UnreadableFile
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.buffers import compact, take_rows
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.notices import warn_user
from mm_assets.interleaved.policies import with_errors
from mm_assets.interleaved.steps import ROWS_CHANGED, StepResult

SCORES = "scores"
"""Side input: the stored image scores of the shard."""
SAMPLE_SCORES = "sample_scores"
"""Side input: the stored sample scores of the shard."""

_PLACE = ("sample_id", "position", "modality", "materialize_error", "source_ref")


@dataclass(frozen=True)
class Refusal:
    """What one filter has to say against an image or a sample."""

    filter: Filter[Any]
    reason: str
    value: float | None

    def loss(self, place: Mapping[str, Any], reason: str = "", is_cause: bool = True) -> Loss:
        """Return the ledger's entry for an item, a row with the columns of `_PLACE`."""
        return Loss(
            place["sample_id"],
            place["position"],
            place["modality"],
            "flagged" if self.filter.action == FLAG else "filtered",
            self.filter.name,
            reason or self.reason,
            self.value,
            self.filter.threshold,
            place.get("source_ref"),
            is_cause,
        )


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
    """

    images: tuple[Filter[ImageScore], ...] = ()
    samples: tuple[Filter[SampleScore], ...] = ()
    image_measures: tuple[ImageMeasure, ...] = ()
    sample_measures: tuple[SampleMeasure, ...] = ()
    image_scores: ImageScores | None = field(default=None, compare=False, repr=False)
    sample_scores: SampleScores | None = field(default=None, compare=False, repr=False)

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
        rows, scores, errors = self._image_scores(batch)
        refusals, flags = self._judged_images(rows, scores)
        refused_samples = self.samples or any(r.filter.action == DROP_SAMPLE for r in refusals.values())
        if not errors and not refusals and not flags and not refused_samples:
            return StepResult(batch)
        table = with_errors(batch.data, errors)
        places = _Places(table)
        losses: dict[int, Loss] = {}
        if refused_samples:
            losses = self._lost_with_samples(places, refusals)
        for row, refusal in refusals.items():
            if row not in losses:
                losses[row] = refusal.loss(places[row])
        flagged = [refusal.loss(places[row]) for row, refusal in flags if row not in losses]
        if self.samples:
            more, sample_flags = self._judged_samples(table, places, losses)
            losses |= more
            flagged = [f for f in flagged if f.sample_id not in {m.sample_id for m in more.values()}]
            flagged += sample_flags
        counts = {ROWS_CHANGED: len(errors)} if errors else {}
        if not losses:
            return StepResult(batch.with_data(table), counts=counts, flags=tuple(flagged))
        dropped = sorted(losses)
        keep = np.ones(table.num_rows, bool)
        keep[dropped] = False
        removed = take_rows(table, dropped)
        kept = compact(take_rows(table, np.flatnonzero(keep)))
        lost = tuple(losses[row] for row in dropped)
        return StepResult(batch.with_data(kept), lost, removed, counts, flags=tuple(flagged))

    def _image_scores(self, batch: InterleavedBatch) -> tuple[list[int], list[ImageScore], dict[int, str]]:
        """Return the rows of the images that can be judged, their scores, and the errors of the others."""
        table = batch.data
        if not self.images:
            return [], [], {}
        images = pc.indices_nonzero(
            pc.and_(
                pc.equal(table.column("modality"), "image"), pc.is_null(table.column("materialize_error"))
            )
        )
        rows = images.to_pylist()
        if not rows:
            return [], [], {}
        if self.image_scores is not None and not self.image_scores.missing(self.image_measures):
            scores = self.image_scores.of(table, rows)
        else:
            scores = score_rows(table, rows, batch.measured, self.image_measures)
        errors = {
            row: score.error for row, score in zip(rows, scores, strict=True) if score.error is not None
        }
        sound = [(row, score) for row, score in zip(rows, scores, strict=True) if score.error is None]
        return [row for row, _ in sound], [score for _, score in sound], errors

    def _judged_images(
        self, rows: Sequence[int], scores: Sequence[ImageScore]
    ) -> tuple[dict[int, Refusal], list[tuple[int, Refusal]]]:
        """Return the refusal that decides about each refused image, by row, and all flags with their rows."""
        refusals: dict[int, Refusal] = {}
        flags: list[tuple[int, Refusal]] = []
        # Those that drop samples come first: an image that another one drops must not hide from them.
        for judge in sorted(self.images, key=lambda judge: judge.action != DROP_SAMPLE):
            left = [index for index, row in enumerate(rows) if row not in refusals]
            for index, reason in zip(left, judge.verdicts([scores[i] for i in left]), strict=True):
                if reason is not None:
                    refusal = Refusal(judge, reason, judge.measure(scores[index]))
                    if judge.action == FLAG:
                        flags.append((rows[index], refusal))
                    else:
                        refusals[rows[index]] = refusal
        return refusals, [(row, refusal) for row, refusal in flags if row not in refusals]

    def _lost_with_samples(self, places: _Places, refusals: Mapping[int, Refusal]) -> dict[int, Loss]:
        """Return the losses of all rows of the samples that an image takes with it, by row."""
        losses: dict[int, Loss] = {}
        for rows in places.samples():
            causes = [row for row in rows if row in refusals and refusals[row].filter.action == DROP_SAMPLE]
            if causes:
                first = refusals[causes[0]]
                beside = f"an image of its sample: {first.reason}"
                for row in rows:
                    losses[row] = (
                        refusals[row].loss(places[row])
                        if row in causes
                        else first.loss(places[row], beside, is_cause=False)
                    )
        return losses

    def _judged_samples(
        self, table: pa.Table, places: _Places, lost: Mapping[int, Loss]
    ) -> tuple[dict[int, Loss], list[Loss]]:
        """Return the losses of all rows of refused samples, by row, and the flags of samples that stay."""
        samples = [left for rows in places.samples() if (left := [row for row in rows if row not in lost])]
        scores = self._sample_scores(table, places, samples)
        losses: dict[int, Loss] = {}
        flags: list[Loss] = []
        for judge in sorted(self.samples, key=lambda judge: judge.action == FLAG):
            open_ = [index for index, rows in enumerate(samples) if rows[0] not in losses]
            for index, reason in zip(open_, judge.verdicts([scores[i] for i in open_]), strict=True):
                if reason is None:
                    continue
                refusal = Refusal(judge, reason, judge.measure(scores[index]))
                if judge.action == FLAG:
                    flags.append(refusal.loss(places[samples[index][0]]))
                else:
                    losses |= {
                        row: refusal.loss(places[row], is_cause=row == samples[index][0])
                        for row in samples[index]
                    }
        return losses, flags

    def _sample_scores(
        self, table: pa.Table, places: _Places, samples: Sequence[Sequence[int]]
    ) -> list[SampleScore]:
        """Return the scores of samples, each given by the rows that are left of it."""
        known = self.sample_scores
        if known is None or known.missing(self.sample_measures):
            known = SampleScores(score_samples(table, self.sample_measures))
        return [
            replace(known.of(str(places[rows[0]]["sample_id"])), images=places.images_among(rows))
            for rows in samples
        ]


class _Places:
    """The columns `_PLACE` of the rows of a table, and the rows of each sample."""

    def __init__(self, table: pa.Table) -> None:
        self._rows = table.select([name for name in _PLACE if name in table.column_names]).to_pylist()

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        return self._rows[row]

    def samples(self) -> Collection[list[int]]:
        """Return the rows of each sample."""
        samples: dict[str, list[int]] = {}
        for row, place in enumerate(self._rows):
            samples.setdefault(place["sample_id"], []).append(row)
        return samples.values()

    def images_among(self, rows: Iterable[int]) -> int:
        """Return how many of some rows are images without an error."""
        return sum(
            self._rows[row]["modality"] == "image" and self._rows[row]["materialize_error"] is None
            for row in rows
        )
