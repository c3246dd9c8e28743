"""Settings of filters: fields of a filter that users set in the graph, on the command line and in the UI."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from mm_assets.interleaved.errors import MmAssetsError


class FilterSettingError(MmAssetsError, ValueError):
    """A setting of filters that cannot be used: its name, and why."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(setting, reason)
        self.setting, self.reason = setting, reason

    def __str__(self) -> str:
        return f"{self.setting}: {self.reason}"


KINDS = (float, int, str, tuple)
SETTING = "setting"
"""Key of a field's metadata with its `FilterSetting`."""


@dataclass(frozen=True)
class FilterSetting:
    """A field of a filter that users set: ``MM_<NAME>`` for the graph, ``--<name>`` for `convert`.

    Args:
        kind: type of its value; a ``tuple`` is one of names.
        meaning: description for users.
        quantity: of a bound, the quantity that the two bounds of a pair limit.
    """

    name: str
    kind: type
    meaning: str
    quantity: str | None = None

    @property
    def is_upper_bound(self) -> bool:
        return self.quantity is not None and self.name == f"max_{self.quantity}"


def setting(name: str, kind: type, default: Any, meaning: str, quantity: str | None = None) -> Any:
    """Declare a field of a filter that users set.

    Args:
        default: the value where only other settings are set.

    Raises:
        TypeError: for a kind that is none of `KINDS`.
    """
    if kind not in KINDS:
        raise TypeError(f"setting {name!r} is of one of {', '.join(k.__name__ for k in KINDS)}, not {kind!r}")
    return field(default=default, metadata={SETTING: FilterSetting(name, kind, meaning, quantity)})


def minimum(quantity: str, kind: type, meaning: str) -> Any:
    """Declare the setting ``min_<quantity>``: a lower bound, inclusive, 0 where it is not set."""
    return _bound(f"min_{quantity}", kind, 0, meaning, quantity)


def maximum(quantity: str, kind: type, meaning: str) -> Any:
    """Declare the setting ``max_<quantity>``: an upper bound, inclusive, infinite where it is not set."""
    return _bound(f"max_{quantity}", kind, math.inf, meaning, quantity)


def _bound(name: str, kind: type, default: float, meaning: str, quantity: str) -> Any:
    if kind not in (float, int):
        raise TypeError(f"bound {name!r} is a float or an int, not {kind!r}")
    return setting(name, kind, float(default) if kind is float else default, meaning, quantity)
