"""The scores of one image: what its header says, and the values of measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.filters.measures.image_content import ImageContent
from mm_assets.filters.measures.image_measure import ImageMeasure
from mm_assets.filters.measures.measuring import DECODE_ERROR, ImageMeasurer, MeasureFailed, decoding
from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.probe import ImageInfo, probe
from mm_assets.interleaved.buffers import binary_views
from mm_assets.interleaved.faults import unreadable_image

MAX_PIXELS = 178_956_970
"""Pillow's own limit for opening an image: twice its `Image.MAX_IMAGE_PIXELS`."""

HEADER_TYPES: Mapping[str, pa.DataType] = MappingProxyType(
    {
        **dict.fromkeys(("width", "height", "longer_side"), pa.int32()),
        "aspect_ratio": pa.float64(),
        "format": pa.string(),
        "orientation": pa.int8(),
        "byte_size": pa.int64(),
    }
)
"""Scores that every image has, from its header, with their types."""

HEADER_SCORES = tuple(HEADER_TYPES)

_LARGE: Final = 32 << 20
"""Bytes of an image before whose measuring Arrow gives back what it keeps: reading it has left as much."""

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ImageScore:
    """The measurements of one image, or the error.

    ``width`` and ``height`` are in pixels as displayed (EXIF orientation applied), ``byte_size`` in bytes.
    ``values`` has those of measures, by name.
    """

    width: int = 0
    height: int = 0
    format: str | None = None
    orientation: int = 1
    byte_size: int = 0
    error: str | None = None
    values: Mapping[str, Any] = field(default_factory=lambda: _NONE)

    @property
    def aspect_ratio(self) -> float:
        return self.width / self.height

    @property
    def longer_side(self) -> int:
        return max(self.width, self.height)

    def error_for(self, measures: Iterable[ImageMeasure]) -> str | None:
        """Return why these measures cannot judge the image: it must be decoded for them, and cannot."""
        return self.error or (self.values.get(DECODE_ERROR) if decoding(measures) else None)

    def value(self, name: str) -> Any:
        """Return a score by name: one of `HEADER_SCORES`, or that of a measure; None where it has none."""
        return getattr(self, name) if name in HEADER_SCORES else self.values.get(name)


def image_views(table: pa.Table, rows: Sequence[int]) -> list[memoryview | None]:
    """Return the bytes of some rows of an interleaved table, not copied; None for null."""
    views = [view for chunk in table.column("binary_content").chunks for view in binary_views(chunk)]
    return [views[row] for row in rows]


def score_image(data: memoryview | bytes | None) -> ImageScore:
    """Measure one image from its header; nothing is decoded."""
    return _scored(data, None, None, ())


def score_rows(
    table: pa.Table,
    rows: Sequence[int],
    headers: Mapping[int, ImageInfo] | None = None,
    measures: Sequence[ImageMeasure] = (),
) -> list[ImageScore]:
    """Return the scores of some rows of an interleaved table.

    An image that a measure cannot decode has `DECODE_ERROR` in the place of values.

    Args:
        rows: row numbers.
        headers: headers that have been read before, by row number.
        measures: what is measured beside what the header says.
    """
    known = headers or {}
    measurer = ImageMeasurer(measures) if measures else None
    texts = _texts_beside(table, rows) if any(measure.needs_texts for measure in measures) else {}
    scores = []
    for row, view in zip(rows, image_views(table, rows), strict=True):
        if measurer is not None and view is not None and len(view) >= _LARGE:
            pa.default_memory_pool().release_unused()
        try:
            scores.append(_scored(view, known.get(row), measurer, texts.get(row, ())))
        except (MeasureFailed, MemoryError) as error:
            sample_id, position = (table.column(name)[row].as_py() for name in ("sample_id", "position"))
            reason = str(error) or "not enough memory to decode it"
            raise ValueError(f"sample {sample_id!r}, position {position}: {reason}") from error
    if measurer is not None:
        measurer.finish()
    return scores


def _scored(
    data: memoryview | bytes | None,
    info: ImageInfo | None,
    measurer: ImageMeasurer | None,
    texts: Sequence[str],
) -> ImageScore:
    if data is None:
        return ImageScore(error="no image bytes")
    try:
        info = info or probe(data)
    except ImageError as error:
        return ImageScore(byte_size=len(data), error=unreadable_image(error).message)
    values = _NONE
    if measurer is not None:
        values = measurer.measure(ImageContent(memoryview(data), info, MAX_PIXELS, texts))
    return ImageScore(
        info.display_width, info.display_height, info.format, info.orientation, len(data), None, values
    )


def _texts_beside(table: pa.Table, rows: Sequence[int]) -> dict[int, Sequence[str]]:
    """Return the texts of the samples of some rows, by row number."""
    ids = table.column("sample_id").to_pylist()
    is_text = pc.and_(pc.equal(table.column("modality"), "text"), pc.is_valid(table.column("text_content")))
    texts: dict[str, list[str]] = {}
    found = pc.indices_nonzero(is_text)
    for row, text in zip(
        found.to_pylist(), table.column("text_content").take(found).to_pylist(), strict=True
    ):
        texts.setdefault(ids[row], []).append(text)
    return {row: texts.get(ids[row], ()) for row in rows}
