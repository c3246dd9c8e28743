"""Find images that cannot be read, before they are written anywhere as if they could."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from mm_assets.filters.aspect_ratio import with_errors
from mm_assets.filters.image_scores import score_rows
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.steps import StepResult


@dataclass(frozen=True)
class ReadableImages:
    """Turns image rows whose bytes have no readable header into error rows (bytes kept), so that the policy decides.

    Costs a few microseconds an image: headers are read, nothing is decoded. A picture that is cut in its body passes.
    """

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        table = batch.data
        wanted = pc.and_(pc.equal(table.column("modality"), "image"), pc.is_valid(table.column("binary_content")))
        rows = pc.indices_nonzero(pc.and_(wanted, pc.is_null(table.column("materialize_error")))).to_pylist()
        scores = score_rows(table, rows) if rows else []
        errors = {row: score.error for row, score in zip(rows, scores, strict=True) if score.error is not None}
        return StepResult(batch.with_data(with_errors(table, errors)))
