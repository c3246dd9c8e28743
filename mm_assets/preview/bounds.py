"""Bounds of filters: the settings that can be moved, and where scores lie towards them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_assets.filters.filter import Filter
from mm_assets.formats.error_lines import error_line

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """A bound that is set.

    Args:
        setting: its name for users.
        field: that of the filter.
        value: the present one.
    """

    setting: str
    field: str
    value: float
    is_upper: bool


def bounds_of(judge: Filter[Any]) -> list[Bound]:
    """Return the bounds of a filter that are not at their defaults, which keep everything."""
    defaults = {field.name: field.default for field in fields(judge)}
    return [
        Bound(known.name, name, value, known.is_upper_bound)
        for name, known in judge.settings().items()
        if known.quantity is not None and (value := getattr(judge, name)) != defaults[name]
    ]


def measured(judge: Filter[Any], scores: Sequence[Any]) -> Numbers:
    """Return the numbers that verdicts are about; nan where there is none.

    Raises:
        ValueError: in one line that names filter and module, for an error in `measure`.
    """
    try:
        values = [judge.measure(score) for score in scores]
        return np.array([np.nan if value is None else value for value in values], np.float64)
    except Exception as error:
        raise ValueError(f"filter {judge.name!r} of {type(judge).__module__}: {error_line(error)}") from error


def distances(judge: Filter[Any], values: Numbers) -> Numbers:
    """Return how far values are from the nearest bound; 0 for a filter without one, inf for no value."""
    bounds = bounds_of(judge)
    if not bounds:
        return np.zeros(len(values))
    nearest = np.min([np.abs(values - bound.value) for bound in bounds], axis=0)
    return np.where(np.isnan(nearest), np.inf, nearest)
