"""Verdict of filters that are nothing but bounds of one score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mm_assets.filters.filter import Filter, Score


@dataclass(frozen=True)
class Bounds(Filter[Score]):
    """Refuses scores below the field ``least`` or above the field ``most``; a filter has either or both.

    Something that has no such score does not reach a lower bound. NaN counts as no score.
    """

    of: ClassVar[str]
    """The score."""

    def verdict(self, score: Score) -> str | None:
        value: Any = self.measure(score)
        settings = self.settings()
        least, most = getattr(self, "least", 0), getattr(self, "most", None)
        if value is None or value != value:
            return f"it has no {self.of}" if least > 0 else None
        if not value >= least:
            return f"less than {settings['least'].name}"
        return f"more than {settings['most'].name}" if most is not None and value > most else None
