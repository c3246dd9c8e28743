"""Base class of image measures: a measure fills one column of the image scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from mm_assets.filters.measures.image_content import ImageContent


@dataclass(frozen=True)
class ImageMeasure(ABC):
    """A measurement of one image, stored in a column of its own.

    A measure is a frozen dataclass; its fields, if any, are part of what identifies its values, except those
    that do not count when measures are compared. Measures that look at pixels share one decoded picture
    (`ImageContent`).
    """

    name: ClassVar[str]
    """Column of the image scores: lower-case letters, digits and underscores."""

    type: ClassVar[pa.DataType]
    """Type of the column."""

    version: ClassVar[str]
    """Another one has all images measured again, by this measure alone."""

    meaning: ClassVar[str]
    """Description of the column for users, with its unit."""

    decodes: ClassVar[bool] = True
    """Whether it looks at pixels."""

    library: ClassVar[str] = ""
    """Module that it needs, beside those of the base install."""

    needs_texts: ClassVar[bool] = False
    """Whether it looks at the texts of the sample."""

    def configured(self) -> Self:
        """Return this measure with the settings that it depends on; most depend on none.

        Raises:
            ValueError: in one line, it cannot be taken with these settings.
        """
        return self

    @abstractmethod
    def measure(self, image: ImageContent) -> Any:
        """Return the value for one image; None where there is none.

        Raises:
            ImageError: the image cannot be decoded.
        """


@dataclass(frozen=True)
class BatchedMeasure(ImageMeasure):
    """A measure that takes many images at once, such as one by a neural network.

    `measure` returns what is kept of each image until there are enough: a few hundred kilobytes at most.
    """

    batch_size: ClassVar[int] = 32

    @abstractmethod
    def measure_all(self, kept: Sequence[Any]) -> Sequence[Any]:
        """Return the values for what `measure` returned, at most ``batch_size`` images at once."""
