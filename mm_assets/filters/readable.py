"""Image checks before rows are written: unusable images, and sizes that differ from declared ones.

* `ReadableImages` makes error rows of images that cannot be used.
* `DimensionTally` compares measured sizes with those that documents declare.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mm_assets.filters.scores import MAX_PIXELS as MAX_PIXELS
from mm_assets.filters.scores import ImageScores, image_views
from mm_assets.formats.images import ImageInfo, looks_whole, probe
from mm_assets.formats.images.decode import decode, refuse_bomb
from mm_assets.formats.images.pixels import check_opens
from mm_assets.model.errors import DECOMPRESSION_BOMB, DecompressionBomb, Fault, ImageError, unreadable_image
from mm_assets.model.losses import with_errors
from mm_assets.model.samples import ROWS_CHANGED, InterleavedBatch, StepResult

CHECKED, DECODED, UNDECODABLE = "images_checked", "images_decoded", "images_undecodable"
"""Counts: images checked; of them, those decoded; of those, the ones that could not be decoded."""


@dataclass(frozen=True)
class ReadableImages:
    """Turns image rows whose bytes are no usable image into error rows (bytes kept); the policy then decides.

    Header and structure of every image are checked, in microseconds, and that Pillow opens it, as clients do.
    An image whose structure shows missing or extra bytes is decoded, and that decides: stray bytes behind a
    picture pass, a picture cut in its body does not.

    Args:
        decode_fraction: share of all images (0..1) that is decoded to find damage inside a complete picture.
            They are chosen by sample id and position alone.
        max_pixels: images of more pixels are errors and never decoded.
    """

    version: ClassVar[str] = "2"  # part of the fingerprint of each shard
    decode_fraction: float = 0.0
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if not 0 <= self.decode_fraction <= 1:
            raise ValueError(f"decode_fraction must be 0..1, not {self.decode_fraction}")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels must be at least 1, not {self.max_pixels}")

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        table = batch.data
        has_bytes = pc.and_(
            pc.equal(table.column("modality"), "image"), pc.is_valid(table.column("binary_content"))
        )
        rows = pc.indices_nonzero(
            pc.and_(has_bytes, pc.is_null(table.column("materialize_error")))
        ).to_pylist()
        counts = Counter({CHECKED: len(rows), DECODED: 0, UNDECODABLE: 0})
        errors: dict[int, Fault] = {}
        measured: dict[int, ImageInfo] = {}
        for row, view, is_sampled in zip(
            rows, image_views(table, rows), self._sampled(table, rows), strict=True
        ):
            assert view is not None  # see `has_bytes`
            try:
                measured[row] = self._check(view, is_sampled, counts)
            except DecompressionBomb as error:
                errors[row] = Fault(DECOMPRESSION_BOMB, f"decompression bomb: {error}")
            except ImageError as error:
                errors[row] = unreadable_image(error)
        counts[ROWS_CHANGED] = len(errors)
        return StepResult(batch.with_data(with_errors(table, errors), measured), counts=counts)

    def _check(self, data: memoryview, is_sampled: bool, counts: Counter[str]) -> ImageInfo:
        """Return the measurements from the header.

        Raises:
            ImageError: for an image that cannot be used.
        """
        info = probe(data)
        refuse_bomb(info.width, info.height, self.max_pixels)
        is_whole = looks_whole(data, info.format)
        if is_whole:
            check_opens(data, info.format)
            if not is_sampled:
                return info
        try:
            is_proven = decode(data, info.format, self.max_pixels)
        except DecompressionBomb:
            raise
        except ImageError as error:
            counts.update((DECODED, UNDECODABLE))
            raise error if is_whole else ImageError(f"cut or damaged: {error}") from error
        counts[DECODED] += 1
        if not is_whole and not is_proven:
            counts[UNDECODABLE] += 1
            raise ImageError("cut or damaged: too many frames to decode them all")
        if not is_whole:
            check_opens(data, info.format)
        return info

    def _sampled(self, table: pa.Table, rows: list[int]) -> list[bool]:
        """Whether each of some rows belongs to the share that is decoded."""
        if self.decode_fraction == 0:
            return [False] * len(rows)
        places = table.select(["sample_id", "position"]).take(pa.array(rows, pa.int64()))
        bound = self.decode_fraction * 2**64
        ids, positions = (column.to_pylist() for column in places.columns)
        return [
            xxhash.xxh3_64_intdigest(f"{name}\0{at}".encode()) < bound
            for name, at in zip(ids, positions, strict=True)
        ]


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
