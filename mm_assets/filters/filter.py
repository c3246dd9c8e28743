"""Base class of all filters: a name, settings, an action, and a verdict on scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar

from mm_assets.filters.filter_settings import SETTING, FilterSetting
from mm_assets.formats.error_lines import error_line

Score = TypeVar("Score")

DROP_ITEM, DROP_SAMPLE, FLAG = "drop_item", "drop_sample", "flag"
ACTIONS = (DROP_ITEM, DROP_SAMPLE, FLAG)
"""What becomes of what a filter refuses.

The item goes, the whole sample goes, or it stays and the ledger lists it.
"""


@dataclass(frozen=True)
class Filter(ABC, Generic[Score]):
    """Refuses what `verdict` returns a reason for.

    A filter is a frozen dataclass whose fields are settings. See `ScoreFilter` and `SampleFilter`.

    Args:
        action: one of `actions`.
    """

    name: ClassVar[str]
    """Name in the ledger, in the column ``kind``."""

    version: ClassVar[str] = ""
    """Part of the fingerprint of each shard: a new version filters all shards again."""

    actions: ClassVar[tuple[str, ...]]
    """The actions that there are; the first is taken where none is set."""

    scores: ClassVar[tuple[str, ...]] = ()
    """Measures that the verdict looks at, beside those that every score has."""

    action: str = field(default="", kw_only=True)

    @abstractmethod
    def verdict(self, score: Score) -> str | None:
        """Return why something is refused; None to keep it.

        The reason is a few words, the same for all that are refused for it.
        """

    def measure(self, score: Score) -> float | None:
        """Return the number that the verdict is about, for the ledger's column ``score``."""
        return None

    def needs(self) -> tuple[str, ...]:
        """Return the names of the measures that the verdict looks at."""
        return self.scores

    @property
    def threshold(self) -> str:
        """Settings as text, for the ledger's column ``threshold``; ``1..2`` for bounds."""
        return "..".join(_text(getattr(self, name)) for name in self.settings())

    @classmethod
    @cache  # verdicts name them
    def settings(cls) -> dict[str, FilterSetting]:
        """Return the settings, by field."""
        return {f.name: f.metadata[SETTING] for f in fields(cls) if SETTING in f.metadata}

    @classmethod
    def from_settings(cls, values: Mapping[str, Any], action: str = "") -> Self | None:
        """Return the filter with these values (by setting); None where none of its settings is set."""
        given: dict[str, Any] = {
            name: tuple(value) if known.kind is tuple else value
            for name, known in cls.settings().items()
            if (value := values.get(known.name)) is not None
        }
        return cls(**given, action=action) if given else None

    @classmethod
    def bounds(cls) -> list[tuple[str, str]]:
        """Return the names of the settings that are pairs of bounds: lower, upper."""
        known = {setting.name: setting.quantity for setting in cls.settings().values()}
        pairs = [(f"min_{quantity}", f"max_{quantity}") for quantity in dict.fromkeys(known.values())]
        return [(low, high) for low, high in pairs if low in known and high in known]

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", self.action or self.actions[0])
        if self.action not in self.actions:
            raise ValueError(
                f"the action of filter {self.name!r} is one of {', '.join(self.actions)}, not {self.action!r}"
            )
        values = {known.name: getattr(self, name) for name, known in self.settings().items()}
        for low, high in ((values[low], values[high]) for low, high in self.bounds()):
            if not 0 <= low <= high:
                raise ValueError(
                    f"{self.name.replace('_', ' ')} bounds must be 0 <= min <= max, not {low} and {high}"
                )
        for known in self.settings().values():
            if known.quantity and not values[known.name] >= 0:
                raise ValueError(
                    f"{known.name} of filter {self.name!r} must be 0 or more, not {values[known.name]}"
                )

    def verdicts(self, scores: Sequence[Score]) -> Sequence[str | None]:
        """Return the verdicts on many scores.

        Raises:
            ValueError: in one line that names filter and module, for an error in `verdict`.
        """
        try:
            return [self.verdict(score) for score in scores]
        except Exception as error:
            raise ValueError(
                f"filter {self.name!r} of {type(self).__module__}: {error_line(error)}"
            ) from error


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, int | float):
        short = f"{value:g}"
        return short if float(short) == value else str(value)  # rounded, different settings would look equal
    return str(value)
