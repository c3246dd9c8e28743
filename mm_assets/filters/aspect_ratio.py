"""Keep images whose width/height lies within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.image_scores import ImageScore, ImageScores, score_rows
from mm_assets.formats.parquet_file import UnreadableFile
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.buffers import compact, take_rows
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.notices import warn_user
from mm_assets.interleaved.policies import with_errors
from mm_assets.interleaved.steps import ROWS_CHANGED, StepResult

NAME = "aspect_ratio"
SCORES = "scores"  # side input: where the measured image scores of the shard are


@dataclass(frozen=True)
class AspectRatioFilter:
    """Drops image rows with width/height outside ``min_ratio..max_ratio`` (both inclusive, EXIF orientation
    honoured).

    Nothing else changes: positions keep their gaps, samples without images stay, rows with an error stay for
    the policy. An image whose header cannot be read becomes an error row, it is not dropped as if it were too
    wide. ``book`` holds scores measured before (side input ``scores``, see `bind`); without it headers are
    read from the bytes.
    """

    min_ratio: float
    max_ratio: float
    book: ImageScores | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.min_ratio <= self.max_ratio:
            raise ValueError(
                f"aspect ratio bounds must be 0 <= min <= max, not {self.min_ratio} and {self.max_ratio}"
            )

    @classmethod
    def between(cls, min_ratio: float | None, max_ratio: float | None) -> AspectRatioFilter | None:
        """The filter of these bounds, of which each may be open; None where both are: nothing is to be
        filtered.
        """
        if min_ratio is None and max_ratio is None:
            return None
        return cls(0.0 if min_ratio is None else min_ratio, math.inf if max_ratio is None else max_ratio)

    def bind(self, side: Mapping[str, tuple[str, str | None]]) -> AspectRatioFilter:
        """The same filter reading the scores of one shard; ``side`` has their place and digest.

        Scores that are damaged count as absent, with a warning that names the file: the same is measured
        again.
        """
        if SCORES not in side:
            return self
        try:
            return replace(self, book=ImageScores.read(*side[SCORES]))
        except (UnreadableFile, FileNotFoundError) as error:
            warn_user(f"{error}: images are measured again")
            return self

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        table = batch.data
        images = pc.indices_nonzero(
            pc.and_(
                pc.equal(table.column("modality"), "image"), pc.is_null(table.column("materialize_error"))
            )
        )
        if len(images) == 0:
            return StepResult(batch)
        rows = images.to_pylist()
        scores = self.book.of(table, rows) if self.book else score_rows(table, rows, batch.measured)
        gone: list[int] = []
        verdicts: list[tuple[ImageScore, str]] = []
        errors: dict[int, str] = {}
        for row, score in zip(rows, scores, strict=True):
            if score.error is not None:
                errors[row] = score.error
            elif (reason := self._verdict(score)) is not None:
                gone.append(row)
                verdicts.append((score, reason))
        table = with_errors(table, errors)
        counts = {ROWS_CHANGED: len(errors)} if errors else {}
        if not gone:
            return StepResult(batch.with_data(table), counts=counts)
        keep = np.ones(table.num_rows, bool)
        keep[gone] = False
        removed = take_rows(table, gone)
        kept = compact(take_rows(table, np.flatnonzero(keep)))
        return StepResult(batch.with_data(kept), self._losses(removed, verdicts), removed, counts)

    def _verdict(self, score: ImageScore) -> str | None:
        ratio = score.aspect_ratio
        if ratio < self.min_ratio:
            return "narrower than min_ratio"
        return "wider than max_ratio" if ratio > self.max_ratio else None

    def _losses(self, removed: pa.Table, verdicts: Sequence[tuple[ImageScore, str]]) -> tuple[Loss, ...]:
        threshold = f"{self.min_ratio:g}..{self.max_ratio:g}"
        places = zip(*(removed.column(name).to_pylist() for name in ("sample_id", "position")), strict=True)
        return tuple(
            Loss(sample_id, position, "image", "filtered", NAME, reason, score.aspect_ratio, threshold)
            for (sample_id, position), (score, reason) in zip(places, verdicts, strict=True)
        )
