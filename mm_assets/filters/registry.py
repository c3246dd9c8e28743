"""Registry of filters, the only list of them.

Graph, settings, `mm-assets convert` and ledger know the filters from it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from mm_assets.filters.aspect_ratio import AspectRatioFilter
from mm_assets.filters.conditions import ImageCondition, SampleCondition
from mm_assets.filters.filter import Filter
from mm_assets.filters.filter_chain import FilterChain
from mm_assets.filters.filter_settings import FilterSetting, FilterSettingError
from mm_assets.filters.image_bounds import (
    ByteSizeFilter,
    ClipSimilarityFilter,
    EntropyFilter,
    LongerSideFilter,
    QrAreaFilter,
    Sharpness512Filter,
    SharpnessFilter,
)
from mm_assets.filters.image_size import ImageSizeFilter
from mm_assets.filters.language import LanguageFilter
from mm_assets.filters.measure_selection import MeasureSelection, selected_measures
from mm_assets.filters.sample_bounds import (
    ImageCountFilter,
    ImagesPerWordFilter,
    RepetitionFilter,
    WordCountFilter,
)
from mm_assets.filters.sample_filter import SampleFilter
from mm_assets.filters.score_filter import ScoreFilter
from mm_assets.plugins import plugin_fault

FILTERS: tuple[type[Filter[Any]], ...] = (
    AspectRatioFilter,
    ImageSizeFilter,
    LongerSideFilter,
    ByteSizeFilter,
    SharpnessFilter,
    Sharpness512Filter,
    QrAreaFilter,
    EntropyFilter,
    ClipSimilarityFilter,
    ImageCondition,
    ImageCountFilter,
    WordCountFilter,
    ImagesPerWordFilter,
    LanguageFilter,
    RepetitionFilter,
    SampleCondition,
)
"""Filters in the order of their application; the ledger names the first that drops something."""

_NAME = re.compile("[a-z][a-z0-9_]*")


def known_filters(plugins: Iterable[ModuleType]) -> tuple[type[Filter[Any]], ...]:
    """Return `FILTERS`, then those in the lists ``FILTERS`` of plugins.

    Raises:
        PluginError: in one line that names the module, for an invalid filter.
    """
    known = list(FILTERS)
    for module in plugins:
        for added in getattr(module, "FILTERS", ()):
            if (fault := _fault(added, known)) is not None:
                raise plugin_fault(module, fault)
            known.append(added)
    return tuple(known)


def settings_of(filters: Iterable[type[Filter[Any]]]) -> list[FilterSetting]:
    """Return the settings of some filters."""
    return [known for kind in filters for known in kind.settings().values()]


def filters_of(
    filters: Iterable[type[Filter[Any]]], values: Mapping[str, Any], actions: Sequence[str] = ()
) -> tuple[Filter[Any], ...]:
    """Return the filters that are turned on by these values (by setting); a filter without values is off.

    Args:
        actions: what filters do with what they refuse, each as ``filter=action``.

    Raises:
        ValueError: in one line, for values or actions that do not fit.
    """
    filters = tuple(filters)
    action_of = _actions(filters, actions)
    made = (kind.from_settings(values, action_of.get(kind.name, "")) for kind in filters)
    return tuple(found for found in made if found is not None)


def measures_for(filters: Iterable[Filter[Any]], scores: Iterable[str] = ()) -> MeasureSelection:
    """Return the measures that filters look at, and those of further scores.

    Raises:
        ValueError: in one line, for a score that cannot be measured.
    """
    return selected_measures({*scores, *(name for made in filters for name in made.needs())})


def chain_of(filters: Iterable[Filter[Any]]) -> FilterChain | None:
    """Return filters with their measures as one step; None where there is no filter."""
    filters = tuple(filters)
    if not filters:
        return None
    return FilterChain.of(filters, measures_for(filters))


def _actions(filters: Sequence[type[Filter[Any]]], texts: Iterable[str]) -> dict[str, str]:
    """Return the action by filter."""
    known = {kind.name: kind for kind in filters}
    actions: dict[str, str] = {}
    for text in texts:
        name, _, action = (part.strip() for part in text.partition("="))
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"the nearest is {near[0]}" if near else f"there are {', '.join(known)}"
            raise _action_fault(text, f"there is no filter {name!r}; {hint}")
        if name in actions:
            raise _action_fault(text, f"{name} has one already: {actions[name]}")
        if action not in known[name].actions:
            raise _action_fault(text, f"the action of {name} is one of {', '.join(known[name].actions)}")
        actions[name] = action
    return actions


def _action_fault(text: str, reason: str) -> FilterSettingError:
    return FilterSettingError("filter_actions", f"{text!r}: {reason}")


def _fault(added: Any, known: Iterable[type[Filter[Any]]]) -> str | None:
    """Return why an object cannot be a filter beside the ``known`` ones, or None."""
    if not (inspect.isclass(added) and issubclass(added, ScoreFilter | SampleFilter)):
        return f"{added!r} in FILTERS is no class of filters: derive it from ScoreFilter or SampleFilter"
    label = f"filter {added.__qualname__}"
    if inspect.isabstract(added):
        return f"{label} has no verdict"
    name = getattr(added, "name", None)
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        return f"{label} needs a name of lower-case letters, digits and underscores, not {name!r}"
    if "__dataclass_params__" not in vars(added):
        return f"{label} must be a dataclass: put @dataclass(frozen=True) above it"
    if not added.settings():
        return f"{label} has no settings: nothing could turn it on"
    defaults = [f.name for f in dataclasses.fields(added) if f.default is dataclasses.MISSING]
    if defaults:
        return f"{label}: the field {defaults[0]!r} has no default; declare it by setting()"
    for other in known:
        if other.name == name:
            return f"{label}: the name {name!r} is taken by {other.__module__}.{other.__qualname__}"
    used = {setting.name for setting in settings_of(known)}
    names = [setting.name for setting in added.settings().values()]
    for setting in names:
        if not _NAME.fullmatch(setting) or setting in used or names.count(setting) > 1:
            return f"{label}: the setting {setting!r} is taken, or no name of lower-case letters"
    return None
