"""The list of filters: what is in it is in the graph, the settings, `mm-assets convert` and the ledger."""

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
"""In the order in which they look at an image; the first that drops it is the one in the ledger."""

_NAME = re.compile("[a-z][a-z0-9_]*")


def known_filters(plugins: Iterable[ModuleType]) -> tuple[type[ScoreFilter], ...]:
    """`FILTERS`, then those in the lists ``FILTERS`` of plugins.

    Raises:
        PluginError: in one line that names the module, for a filter that does not fit.
    """
    known = list(FILTERS)
    for module in plugins:
        for added in getattr(module, "FILTERS", ()):
            if (fault := _fault(added, known)) is not None:
                raise plugin_fault(module, fault)
            known.append(added)
    return tuple(known)


def settings_of(filters: Iterable[type[ScoreFilter]]) -> list[FilterSetting]:
    """The settings of some filters."""
    return [known for kind in filters for known in kind.settings().values()]


def filters_of(filters: Iterable[type[ScoreFilter]], values: Mapping[str, Any]) -> tuple[ScoreFilter, ...]:
    """The filters that these values by setting ask for; what is not set filters nothing."""
    return tuple(made for kind in filters if (made := kind.from_settings(values)) is not None)


def _fault(added: Any, known: Iterable[type[ScoreFilter]]) -> str | None:
    """Why something cannot be a filter beside the ``known`` ones."""
    if not (inspect.isclass(added) and issubclass(added, ScoreFilter)):
        return f"{added!r} in FILTERS is no class of filters: derive it from ScoreFilter"
    called = f"filter {added.__qualname__}"
    if inspect.isabstract(added):
        return f"{called} has no verdict"
    name = getattr(added, "name", None)
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        return f"{called} needs a name of lower-case letters, digits and underscores, not {name!r}"
    if "__dataclass_params__" not in vars(added):
        return f"{called} must be a dataclass: put @dataclass(frozen=True) above it"
    if not added.settings():
        return f"{called} has no settings: nothing could turn it on"
    defaults = [f.name for f in dataclasses.fields(added) if f.default is dataclasses.MISSING]
    if defaults:
        return f"{called}: the field {defaults[0]!r} has no default; declare it by setting()"
    for other in known:
        if other.name == name:
            return f"{called}: the name {name!r} is taken by {other.__module__}.{other.__qualname__}"
    taken = {setting.name for setting in settings_of(known)}
    names = [setting.name for setting in added.settings().values()]
    for setting in names:
        if not _NAME.fullmatch(setting) or setting in taken or names.count(setting) > 1:
            return f"{called}: the setting {setting!r} is taken, or no name of lower-case letters"
    return None
