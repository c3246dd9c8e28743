"""Measuring of images: each is decoded at most once, for all its measures, and none is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from mm_assets.filters.measures.image_content import ImageContent
from mm_assets.filters.measures.image_measure import BatchedMeasure, ImageMeasure
from mm_assets.formats.error_lines import error_line
from mm_assets.formats.images.decode_memory import TooMuchMemory
from mm_assets.formats.images.errors import ImageError
from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.interleaved.faults import unreadable_image

DECODE_ERROR: Final = "decode_error"
"""Value of an image that a measure could not decode: the message. Filters by the header alone ignore it."""

MOST_DECODED_PIXELS: Final = 1 << 25
"""An image of more pixels is not decoded for a measure; how many there may be depends on the format, too."""


class MeasureFailed(MmAssetsError, ValueError):
    """A measure raised an error; the message names it and its module."""


class ImageMeasurer:
    """Takes measures of one image after the other.

    Values of measures that take many images at once are there after `finish` at the latest.
    """

    def __init__(self, measures: Sequence[ImageMeasure]) -> None:
        self._measures = measures
        self._without_pixels = {measure.name for measure in measures if not measure.decodes}
        self._waiting: dict[str, list[tuple[dict[str, Any], Any]]] = {
            measure.name: [] for measure in measures if isinstance(measure, BatchedMeasure)
        }

    def measure(self, image: ImageContent) -> dict[str, Any]:
        """Return the values of one image by measure; those that come later are added to the same dict.

        An image that is too large to be decoded has no values of measures that look at pixels. Nor has one
        that cannot be decoded, but `DECODE_ERROR`.

        Raises:
            MeasureFailed: by the measure's own fault.
        """
        is_large = image.info.width * image.info.height > MOST_DECODED_PIXELS
        taken = [measure for measure in self._measures if not (is_large and measure.decodes)]
        values: dict[str, Any] = {}
        kept: list[tuple[BatchedMeasure, Any]] = []
        try:
            for measure in sorted(taken, key=lambda measure: measure.decodes):
                value = _value(measure, image)
                if isinstance(measure, BatchedMeasure):
                    kept.append((measure, value))
                else:
                    values[measure.name] = value
        except ImageError as error:
            found = {name: value for name, value in values.items() if name in self._without_pixels}
            if not isinstance(error, TooMuchMemory):
                found[DECODE_ERROR] = unreadable_image(error).message
            return found
        for batched, value in kept:
            waiting = self._waiting[batched.name]
            waiting.append((values, value))
            if len(waiting) >= batched.batch_size:
                self._take(batched)
        return values

    def finish(self) -> None:
        """Take the measures of the images that still wait."""
        for measure in self._measures:
            if isinstance(measure, BatchedMeasure):
                self._take(measure)

    def _take(self, measure: BatchedMeasure) -> None:
        waiting = self._waiting[measure.name]
        if waiting:
            try:
                taken = measure.measure_all([kept for _, kept in waiting])
            except (ImportError, MemoryError, MmAssetsError):
                raise
            except Exception as error:
                raise _fault(measure, error) from error
            for (values, _), value in zip(waiting, taken, strict=True):
                values[measure.name] = value
            waiting.clear()


def decoding(measures: Iterable[ImageMeasure]) -> bool:
    """Return whether one of some measures looks at pixels."""
    return any(measure.decodes for measure in measures)


def _value(measure: ImageMeasure, image: ImageContent) -> Any:
    try:
        return measure.measure(image)
    except (ImageError, ImportError, MemoryError, MmAssetsError):
        raise  # the image's fault, or that of the set-up or the machine: none of the measure's
    except Exception as error:
        raise _fault(measure, error) from error


def _fault(measure: ImageMeasure, error: Exception) -> MeasureFailed:
    return MeasureFailed(f"measure {measure.name!r} of {type(measure).__module__}: {error_line(error)}")
