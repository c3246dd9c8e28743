"""Base class of sample measures: a measure fills one column of the sample scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa


@dataclass
class SampleContent:
    """The texts of one sample, in the order of their positions, and its number of images.

    Images with an error do not count.
    """

    texts: Sequence[str]
    images: int
    once: dict[str, Any] = field(default_factory=dict)
    """What one measure has found out and another can use, by name."""

    @cached_property
    def text(self) -> str:
        """All texts, with a line break between them."""
        return "\n".join(self.texts)

    def beginning(self, characters: int) -> str:
        """Return the first characters of `text`; texts behind them are not looked at."""
        parts: list[str] = []
        missing = characters
        for text in self.texts:
            if missing < 0:
                break
            parts.append(text[:missing])
            missing -= len(text) + 1
        return "\n".join(parts)[:characters]

    @cached_property
    def words(self) -> int:
        """Words of all texts, separated by white space."""
        return sum(len(text.split()) for text in self.texts)


@dataclass(frozen=True)
class SampleMeasure(ABC):
    """A measurement of one sample, stored in a column of its own.

    A measure is a frozen dataclass; its fields, if any, are part of what identifies its values.
    """

    name: ClassVar[str]
    """Column of the sample scores: lower-case letters, digits and underscores."""

    type: ClassVar[pa.DataType]
    """Type of the column."""

    version: ClassVar[str]
    """Another one has all samples measured again, by this measure alone."""

    meaning: ClassVar[str]
    """Description of the column for users, with its unit."""

    library: ClassVar[str] = ""
    """Module that it needs, beside those of the base install."""

    @abstractmethod
    def measure(self, sample: SampleContent) -> Any:
        """Return the value for one sample; None where there is none."""
