"""Registry of filters, the only list of them.

Graph, settings, `mm-assets convert` and ledger know the filters from it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from mm_assets.filters.aspect_ratio import AspectRatioFilter
from mm_assets.filters.image_size import ImageSizeFilter
from mm_assets.filters.score_filter import FilterSetting, ScoreFilter
from mm_assets.plugins import plugin_fault

FILTERS: tuple[type[ScoreFilter], ...] = (AspectRatioFilter, ImageSizeFilter)
"""Filters in the order of their application; the ledger names the first that drops an image."""

_NAME = re.compile("[a-z][a-z0-9_]*")


def known_filters(plugins: Iterable[ModuleType]) -> tuple[type[ScoreFilter], ...]:
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


def settings_of(filters: Iterable[type[ScoreFilter]]) -> list[FilterSetting]:
    """Return the settings of some filters."""
    return [known for kind in filters for known in kind.settings().values()]


def filters_of(filters: Iterable[type[ScoreFilter]], values: Mapping[str, Any]) -> tuple[ScoreFilter, ...]:
    """Return the filters that are turned on by these values (by setting); a filter without values is off."""
    return tuple(made for kind in filters if (made := kind.from_settings(values)) is not None)


def _fault(added: Any, known: Iterable[type[ScoreFilter]]) -> str | None:
    """Return why an object cannot be a filter beside the ``known`` ones, or None."""
    if not (inspect.isclass(added) and issubclass(added, ScoreFilter)):
        return f"{added!r} in FILTERS is no class of filters: derive it from ScoreFilter"
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
