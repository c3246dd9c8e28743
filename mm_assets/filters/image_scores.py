"""Image scores: measurements of a shard's images, taken once and stored.

A changed threshold is applied to them without reading an image again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa

from mm_assets.filters.image_score import ImageScore as ImageScore
from mm_assets.filters.image_score import image_views as image_views
from mm_assets.filters.image_score import score_image as score_image
from mm_assets.filters.image_score import score_rows
from mm_assets.filters.measured_columns import (
    column_of,
    column_values,
    is_measured,
    missing_measures,
    read_scores,
    with_columns,
)
from mm_assets.filters.measures.image_measure import ImageMeasure
from mm_assets.filters.measures.measuring import DECODE_ERROR

SCORES_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("format", pa.string()),
        pa.field("orientation", pa.int8()),
        pa.field("byte_size", pa.int64()),
        pa.field("error", pa.string()),
    ]
)
"""Columns that all image scores have. One follows for each measure."""


class _DecodeError:
    """What fills the column beside those of measures."""

    name: ClassVar[str] = DECODE_ERROR
    type: ClassVar[pa.DataType] = pa.string()
    version: ClassVar[str] = "1"


def scores_schema(measures: Sequence[ImageMeasure] = (), known: ImageScores | None = None) -> pa.Schema:
    """Return the schema of scores with these measures, and with those of earlier scores."""
    columns = {column.name: column for column in (known.measured if known is not None else ())}
    columns |= {measure.name: column_of(measure) for measure in measures}
    if columns:
        columns[DECODE_ERROR] = column_of(_DecodeError())
    return with_columns(SCORES_SCHEMA, columns.values())


def score_table(
    table: pa.Table, measures: Sequence[ImageMeasure] = (), known: ImageScores | None = None
) -> pa.Table:
    """Return one row per image row of an interleaved table: `SCORES_SCHEMA`, and a column for each measure.

    Images that carry an error already have that error and no measurement.

    Args:
        measures: what is measured beside what the header says.
        known: scores of the same images. Their measures are taken over, all of them; only what is missing is
            measured. If nothing is, no column ``binary_content`` is needed.
    """
    modality = table.column("modality").to_pylist()
    rows = [row for row, kind in enumerate(modality) if kind == "image"]
    places = table.select(["sample_id", "position", "materialize_error"]).take(pa.array(rows, pa.int64()))
    ids, positions, faults = (column.to_pylist() for column in places.columns)
    missing = measures if known is None else known.missing(measures)
    if known is None:
        scores = score_rows(table, rows, measures=missing)
    else:
        earlier = known.of(table, rows)
        scores = earlier
        if missing:
            found = score_rows(table, rows, measures=missing)
            scores = [_merged(old, new) for old, new in zip(earlier, found, strict=True)]
    scores = [
        ImageScore(error=message) if message is not None else score
        for message, score in zip(faults, scores, strict=True)
    ]
    schema = scores_schema(measures, known)
    measured = schema.names[len(SCORES_SCHEMA) :]
    values: dict[str, list[Any]] = {
        "sample_id": ids,
        "position": positions,
        "width": [s.width or None for s in scores],
        "height": [s.height or None for s in scores],
        "format": [s.format for s in scores],
        "orientation": [None if s.error else s.orientation for s in scores],
        "byte_size": [s.byte_size for s in scores],
        "error": [s.error for s in scores],
        **{name: [s.values.get(name) for s in scores] for name in measured},
    }
    return pa.Table.from_arrays(
        [column_values(values[column.name], column) for column in schema], schema=schema
    )


def _merged(old: ImageScore, new: ImageScore) -> ImageScore:
    """Return both scores of one image in one."""
    if old.error is not None or new.error is not None:
        return old if old.error is not None else new
    values = {**old.values, **new.values}
    values[DECODE_ERROR] = old.values.get(DECODE_ERROR) or new.values.get(DECODE_ERROR)
    return replace(new, values=values)


class ImageScores:
    """The scores of one shard, by sample id and position.

    Attributes:
        measured: the columns of measures.
    """

    def __init__(self, table: pa.Table) -> None:
        self.measured = [column for column in table.schema if is_measured(column)]
        values = {column.name: _values(table.column(column.name)) for column in self.measured}
        self._scores = {
            (r["sample_id"], r["position"]): ImageScore(
                r["width"] or 0,
                r["height"] or 0,
                r["format"],
                r["orientation"] or 1,
                r["byte_size"],
                r["error"],
                {name: column[row] for name, column in values.items()},
            )
            for row, r in enumerate(table.select(SCORES_SCHEMA.names).to_pylist())
        }

    @classmethod
    def read(cls, uri: str, digest: str | None = None) -> ImageScores:
        """Read the scores file of a shard; raises as `read_scores`."""
        return cls(read_scores(uri, SCORES_SCHEMA, digest))

    def missing(self, measures: Sequence[ImageMeasure]) -> list[ImageMeasure]:
        """Return the measures that these scores lack, or have in another version."""
        return missing_measures(self.measured, measures)

    def __iter__(self) -> Iterator[tuple[tuple[str, int], ImageScore]]:
        """Yield sample id and position, and the score, of each image in the order of the rows."""
        return iter(self._scores.items())

    def get(self, sample_id: str, position: int) -> ImageScore | None:
        """Return the score of one image; None for one that was never scored."""
        return self._scores.get((sample_id, position))

    def of(self, table: pa.Table, rows: Sequence[int]) -> list[ImageScore]:
        """Return the scores of some rows of a table.

        Raises:
            ValueError: for an image that was never scored: table and scores do not belong together.
        """
        ids = table.column("sample_id").take(pa.array(rows, pa.int64())).to_pylist()
        positions = table.column("position").take(pa.array(rows, pa.int64())).to_pylist()
        scores = []
        for place in zip(ids, positions, strict=True):
            score = self._scores.get(place)
            if score is None:
                raise ValueError(
                    f"sample {place[0]!r}, position {place[1]}: no image score; "
                    "materialize image_scores again"
                )
            scores.append(score)
        return scores


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a measure; lists stay Arrow's: Python's take ten times the memory."""
    if pa.types.is_nested(column.type):
        return [value if value.is_valid else None for value in column]
    return column.to_pylist()
