"""Filters by a condition over scores, written as in SQL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from mm_assets.filters.condition import ConditionError, columns_of, evaluate
from mm_assets.filters.filter import Filter, Score
from mm_assets.filters.filter_settings import setting
from mm_assets.filters.image_score import HEADER_SCORES, ImageScore
from mm_assets.filters.measure_selection import known_measures, names_of
from mm_assets.filters.sample_filter import SampleFilter
from mm_assets.filters.sample_scores import TEXT_SCORES, SampleScore
from mm_assets.filters.score_filter import ScoreFilter

_REFUSED = "the condition does not hold"


class _Valued(Protocol):
    def value(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Condition(Filter[Score]):
    """Refuses that for which the field ``condition`` does not hold."""

    always: ClassVar[Collection[str]]
    """Scores that there are without a measure."""

    condition = ""

    @classmethod
    @abstractmethod
    def measure_names(cls) -> Collection[str]:
        """Return the scores that there are with a measure."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._columns()

    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in self._columns() if name not in self.always)

    def verdict(self, score: Score) -> str | None:
        return self.verdicts([score])[0]

    def verdicts(self, scores: Sequence[Score]) -> Sequence[str | None]:
        if not scores:
            return []
        # A table has as many rows as its columns: one more, for a condition that looks at none.
        columns = {name: [score.value(name) for score in scores] for name in self._columns()}  # type: ignore[attr-defined]
        table = pa.table({**columns, "": pa.nulls(len(scores))})
        try:
            holds = evaluate(self.condition, table)
        except ConditionError as error:
            raise self._fault(error) from error
        return [None if keep else _REFUSED for keep in holds]

    def _columns(self) -> tuple[str, ...]:
        try:
            return columns_of(self.condition, [*self.always, *self.measure_names()])
        except ConditionError as error:
            raise self._fault(error) from error

    def _fault(self, error: ConditionError) -> ValueError:
        return ValueError(f"{self.name}: {self.condition!r}: {error}")


@dataclass(frozen=True)
class ImageCondition(Condition[ImageScore], ScoreFilter):
    """Keeps the images for which a condition holds."""

    name = "keep_images"
    always = HEADER_SCORES

    condition: str = setting(
        "keep_images",
        str,
        "true",
        "condition for the images that are kept, such as \"width >= 200 and format != 'gif'\"",
    )

    @classmethod
    def measure_names(cls) -> Collection[str]:
        return names_of(known_measures().images)


@dataclass(frozen=True)
class SampleCondition(Condition[SampleScore], SampleFilter):
    """Keeps the samples for which a condition holds."""

    name = "keep_samples"
    always = TEXT_SCORES

    condition: str = setting(
        "keep_samples",
        str,
        "true",
        'condition for the samples that are kept, such as "words >= 20 and images > 0"',
    )

    @classmethod
    def measure_names(cls) -> Collection[str]:
        return names_of(known_measures().samples)
