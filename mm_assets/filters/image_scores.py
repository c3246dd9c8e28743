"""Image scores: measurements taken once from image headers and stored.

A changed threshold is applied to them without reading an image again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.probe import ImageInfo, probe
from mm_assets.formats.parquet_file import UnreadableFile, read_small_table
from mm_assets.interleaved.buffers import binary_views
from mm_assets.interleaved.digest import ContentDigest
from mm_assets.interleaved.faults import unreadable_image

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


@dataclass(frozen=True, slots=True)
class ImageScore:
    """The measurements of one image, or the error.

    ``width`` and ``height`` are in pixels as displayed (EXIF orientation applied), ``byte_size`` in bytes.
    """

    width: int = 0
    height: int = 0
    format: str | None = None
    orientation: int = 1
    byte_size: int = 0
    error: str | None = None

    @property
    def aspect_ratio(self) -> float:
        return self.width / self.height


def score_image(data: memoryview | bytes | None) -> ImageScore:
    """Measure one image from its header; nothing is decoded."""
    if data is None:
        return ImageScore(error="no image bytes")
    try:
        info = probe(data)
    except ImageError as error:
        return ImageScore(byte_size=len(data), error=unreadable_image(error).message)
    return _score(info, data)


def _score(info: ImageInfo, data: memoryview | bytes) -> ImageScore:
    return ImageScore(info.display_width, info.display_height, info.format, info.orientation, len(data))


def image_views(table: pa.Table, rows: Sequence[int]) -> list[memoryview | None]:
    """Return the bytes of some rows of an interleaved table, not copied; None for null."""
    views = [view for chunk in table.column("binary_content").chunks for view in binary_views(chunk)]
    return [views[row] for row in rows]


def score_rows(
    table: pa.Table, rows: Sequence[int], measured: Mapping[int, ImageInfo] | None = None
) -> list[ImageScore]:
    """Return the scores of some rows of an interleaved table.

    Args:
        rows: row numbers.
        measured: headers that have been read before, by row number.
    """
    known = measured or {}
    views = zip(rows, image_views(table, rows), strict=True)
    return [
        _score(known[row], view) if view is not None and row in known else score_image(view)
        for row, view in views
    ]


def score_table(table: pa.Table) -> pa.Table:
    """Return one row per image row of an interleaved table, in `SCORES_SCHEMA`.

    Images that carry an error already have that error and no measurement.
    """
    modality = table.column("modality").to_pylist()
    rows = [row for row, kind in enumerate(modality) if kind == "image"]
    ids, positions, known = (
        table.column(name).take(pa.array(rows, pa.int64())).to_pylist()
        for name in ("sample_id", "position", "materialize_error")
    )
    scores = [
        ImageScore(error=message) if message is not None else score
        for message, score in zip(known, score_rows(table, rows), strict=True)
    ]
    columns = [
        pa.array(ids, pa.string()),
        pa.array(positions, pa.int32()),
        pa.array([s.width or None for s in scores], pa.int32()),
        pa.array([s.height or None for s in scores], pa.int32()),
        pa.array([s.format for s in scores], pa.string()),
        pa.array([None if s.error else s.orientation for s in scores], pa.int8()),
        pa.array([s.byte_size for s in scores], pa.int64()),
        pa.array([s.error for s in scores], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCORES_SCHEMA)


def digest_of_scores(table: pa.Table) -> str:
    """Return the digest of all rows, which is the data version of the scores."""
    digest = ContentDigest()
    digest.observe(table)
    return digest.hexdigest()


class ImageScores:
    """The scores of one shard, by sample id and position."""

    def __init__(self, table: pa.Table) -> None:
        self._scores = {
            (r["sample_id"], r["position"]): ImageScore(
                r["width"] or 0,
                r["height"] or 0,
                r["format"],
                r["orientation"] or 1,
                r["byte_size"],
                r["error"],
            )
            for r in table.to_pylist()
        }

    @classmethod
    def read(cls, uri: str, digest: str | None = None) -> ImageScores:
        """Read the scores file of a shard.

        Raises:
            UnreadableFile: for a damaged file, and for one whose rows have another ``digest``.
        """
        table = read_small_table(uri, SCORES_SCHEMA.names)
        if digest is not None and digest != digest_of_scores(table):
            raise UnreadableFile(f"{uri}: damaged: its rows are not those that were written")
        return cls(table)

    def get(self, sample_id: str, position: int) -> ImageScore | None:
        """Return the score of one image; None for one that was never scored."""
        return self._scores.get((sample_id, position))

    def of(self, table: pa.Table, rows: Sequence[int]) -> list[ImageScore]:
        """Return the scores of some rows of a table.

        Raises:
            ValueError: for an image that was never scored: table and scores do not belong together.
        """
        ids = table.column("sample_id").take(pa.array(rows)).to_pylist()
        positions = table.column("position").take(pa.array(rows)).to_pylist()
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
