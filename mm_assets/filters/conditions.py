"""Filters by a condition over scores, written as in SQL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from mm_assets.filters.condition import (
    ConditionError,
    columns_of,
    evaluate,
    refuse_other_than_condition,
)
from mm_assets.filters.filter import Filter, Score
from mm_assets.filters.filter_settings import FilterSettingError, setting
from mm_assets.filters.image_score import HEADER_TYPES, ImageScore
from mm_assets.filters.measure_selection import known_measures
from mm_assets.filters.measured_columns import Measure
from mm_assets.filters.sample_filter import SampleFilter
from mm_assets.filters.sample_scores import TEXT_TYPES, SampleScore
from mm_assets.filters.score_filter import ScoreFilter

_REFUSED = "the condition does not hold"


class _Valued(Protocol):
    def value(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Condition(Filter[Score]):
    """Refuses that for which the field ``condition`` does not hold."""

    always: ClassVar[Mapping[str, pa.DataType]]
    """Scores that there are without a measure, with their types."""

    condition = ""

    _names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def measures(cls) -> Iterable[Measure]:
        """Return the measures of the scores that there are beside those."""

    @classmethod
    def types(cls) -> dict[str, pa.DataType]:
        """Return the types of all scores by name."""
        return {**cls.always, **{measure.name: measure.type for measure in cls.measures()}}

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            types = self.types()
            names = columns_of(self.condition, types)
            refuse_other_than_condition(self.condition, pa.schema([(name, types[name]) for name in names]))
        except ConditionError as error:
            raise self._fault(error) from error
        # Goes with the filter to workers, which may know neither settings nor plugins.
        object.__setattr__(self, "_names", names)

    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in self._names if name not in self.always)

    def verdict(self, score: Score) -> str | None:
        return self.verdicts([score])[0]

    def verdicts(self, scores: Sequence[Score]) -> Sequence[str | None]:
        if not scores:
            return []
        # A table has as many rows as its columns: one more, for a condition that looks at none.
        columns = {name: [score.value(name) for score in scores] for name in self._names}  # type: ignore[attr-defined]
        table = pa.table({**columns, "": pa.nulls(len(scores))})
        try:
            holds = evaluate(self.condition, table)
        except ConditionError as error:
            raise self._fault(error) from error
        return [None if keep else _REFUSED for keep in holds]

    def _fault(self, error: ConditionError) -> FilterSettingError:
        return FilterSettingError(self.settings()["condition"].name, f"{self.condition!r}: {error}")


@dataclass(frozen=True)
class ImageCondition(Condition[ImageScore], ScoreFilter):
    """Keeps the images for which a condition holds."""

    name = "keep_images"
    always = HEADER_TYPES

    condition: str = setting(
        "keep_images",
        str,
        "true",
        "condition for the images that are kept, such as \"width >= 200 and format != 'gif'\"",
    )

    @classmethod
    def measures(cls) -> Iterable[Measure]:
        return known_measures().images


@dataclass(frozen=True)
class SampleCondition(Condition[SampleScore], SampleFilter):
    """Keeps the samples for which a condition holds."""

    name = "keep_samples"
    always = TEXT_TYPES

    condition: str = setting(
        "keep_samples",
        str,
        "true",
        'condition for the samples that are kept, such as "words >= 20 and images > 0"',
    )

    @classmethod
    def measures(cls) -> Iterable[Measure]:
        return known_measures().samples
