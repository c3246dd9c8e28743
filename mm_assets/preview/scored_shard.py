"""The scores of one shard as rows that filters judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_assets.filters.decisions import ImageRefusals, RowKeys
from mm_assets.filters.image_score import ImageScore
from mm_assets.filters.image_scores import ImageScores
from mm_assets.filters.measures.measuring import DECODE_ERROR
from mm_assets.filters.sample_scores import SampleScores


@dataclass(frozen=True)
class ScoredShard:
    """The scores of one shard, and its items as rows: images in the order of their scores, then samples.

    A sample's row stands for its metadata and its texts.

    Attributes:
        row_keys: of the rows; an image that could not be measured has an error.
        unscored_row_keys: the same for filters that look at no image: only faulty rows have an error.
        image_refusals: what filters say against the images without an error, with their scores by row.
        items: items that each row stands for.
        nbytes: bytes of the image of each row.
        images: rows that are images; the others are samples.
    """

    file_name: str
    row_keys: RowKeys
    unscored_row_keys: RowKeys
    image_refusals: ImageRefusals
    samples: SampleScores
    items: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    images: int

    @property
    def scores(self) -> Mapping[int, ImageScore]:
        """The scores of the images without an error, by row."""
        return self.image_refusals.scores

    @classmethod
    def of(cls, file_name: str, images: ImageScores, samples: SampleScores) -> ScoredShard:
        """Return a shard with these scores."""
        rows: list[Mapping[str, Any]] = []
        scores: dict[int, ImageScore] = {}
        nbytes: list[int] = []
        for (sample_id, position), score in images:
            error = score.error or score.values.get(DECODE_ERROR)
            if error is None:
                scores[len(rows)] = score
            nbytes.append(score.byte_size or 0)
            rows.append(_row(sample_id, position, "image", error))
        images_in, items = len(rows), [1] * len(rows)
        for sample_id, sample in samples:
            rows.append(_row(sample_id, -1, "metadata", None))
            items.append(1 + sample.texts)
        nbytes += [0] * (len(rows) - len(nbytes))
        return cls(
            file_name,
            RowKeys(rows),
            RowKeys(_without_errors_of_measures(rows, samples)),
            ImageRefusals(scores),
            samples,
            np.array(items, np.int64),
            np.array(nbytes, np.int64),
            images_in,
        )


def _row(sample_id: str, position: int, modality: str, error: str | None) -> dict[str, Any]:
    return {"sample_id": sample_id, "position": position, "modality": modality, "materialize_error": error}


def _without_errors_of_measures(
    rows: Sequence[Mapping[str, Any]], samples: SampleScores
) -> Sequence[Mapping[str, Any]]:
    """Return rows where as many images of each sample have an error as had one before they were measured.

    Sample scores say how many, not which; whoever looks at no image cannot tell.
    """
    with_errors = Counter(row["sample_id"] for row in rows if row["materialize_error"] is not None)
    if not with_errors:
        return rows
    images = Counter(row["sample_id"] for row in rows if row["modality"] == "image")
    sound = {sample_id: sample.images - images[sample_id] for sample_id, sample in samples}
    mended = {sample_id: sound.get(sample_id, 0) + count for sample_id, count in with_errors.items()}
    found = []
    for row in rows:
        if row["materialize_error"] is not None and mended[row["sample_id"]] > 0:
            mended[row["sample_id"]] -= 1
            row = {**row, "materialize_error": None}
        found.append(row)
    return found
