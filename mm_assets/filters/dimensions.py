"""Comparison of measured image sizes with those that documents declare."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from mm_assets.filters.image_scores import ImageScores

SIDE_COLUMNS = (("nv_width", "nv_height"), ("width", "height"))
"""Columns of image rows that declare a size; the first pair with values counts."""

DECLARATIONS = "image_metadata"
"""Column with sizes as objects of `width` and `height`.

An image row has one; a metadata row has a list of those of the whole sample."""

COLUMNS = (
    "sample_id",
    "position",
    "modality",
    DECLARATIONS,
    *(name for pair in SIDE_COLUMNS for name in pair),
)
"""Columns of a table that `DimensionTally.observe` reads; the first three are required."""

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True)
class Mismatch:
    """An image of another size than declared.

    ``measured`` is the size as displayed (EXIF orientation applied).
    """

    sample_id: str
    position: int
    declared: Size
    measured: Size


@dataclass
class DimensionTally:
    """Counts of images with equal and different declared and measured sizes, table after table.

    ``compared`` images have both. ``undeclared`` ones were measured, but have no clear declaration: it is
    absent, no positive whole numbers, or in a list that cannot be matched to the images. Images without a
    measurement count as neither.
    """

    compared: int = 0
    undeclared: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)

    def observe(self, table: pa.Table, scores: ImageScores) -> None:
        """Compare the images of whole samples with their ``scores``.

        A declared size may be the stored or the displayed one.
        """
        present = [name for name in COLUMNS if name in table.column_names]
        for sample_id, rows in groupby(table.select(present).to_pylist(), key=lambda row: row["sample_id"]):
            for position, declared in _declared_sizes(list(rows)):
                score = scores.get(sample_id, position)
                if score is None or score.error is not None:
                    continue
                if declared is None:
                    self.undeclared += 1
                    continue
                self.compared += 1
                measured = score.width, score.height
                if declared != measured and not (score.orientation >= 5 and declared == measured[::-1]):
                    self.mismatches.append(Mismatch(sample_id, position, declared, measured))


def _declared_sizes(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Size | None]]:
    """Yield position and declared size of each image of one sample."""
    images = sorted((row for row in rows if row["modality"] == "image"), key=lambda row: row["position"])
    listed = _aligned(rows, [row["position"] for row in images])
    for row in images:
        in_columns = (_size(row.get(width), row.get(height)) for width, height in SIDE_COLUMNS)
        declared = (*in_columns, _size_in(row.get(DECLARATIONS)), _size_in(listed.get(row["position"])))
        yield row["position"], next((size for size in declared if size is not None), None)


def _aligned(rows: Sequence[dict[str, Any]], images: Sequence[int]) -> dict[int, Any]:
    """Return the entries of the metadata row's list by position; none where the assignment is unclear.

    A list has an entry for each image of the source, or one for each place of the source's lists, with null
    where there is a text. Once images were dropped, only the list's length and the places of texts tell the
    two apart.
    """
    entries = next((_parsed(row.get(DECLARATIONS)) for row in rows if row["modality"] == "metadata"), None)
    if not isinstance(entries, list):
        return {}
    if len(entries) == len(images):
        return dict(zip(images, entries, strict=True))
    places = {row["position"] for row in rows if row["modality"] != "metadata"}
    if max(places, default=-1) >= len(entries) or any(
        entries[place] is not None for place in places.difference(images)
    ):
        return {}
    return {place: entries[place] for place in images}


def _parsed(value: Any) -> Any:
    """Return a value that may be given as JSON text; None for text that is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _size_in(declaration: Any) -> Size | None:
    entry = _parsed(declaration)
    return _size(entry.get("width"), entry.get("height")) if isinstance(entry, dict) else None


def _size(width: Any, height: Any) -> Size | None:
    sides = tuple(_parsed(side) for side in (width, height))
    if any(
        isinstance(side, bool) or not isinstance(side, int | float) or side <= 0 or side != side // 1
        for side in sides
    ):
        return None
    return int(sides[0]), int(sides[1])
