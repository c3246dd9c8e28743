"""The filters that a preview is about: those of the settings, with other values over them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from mm_assets.filters.filter import Filter
from mm_assets.filters.registry import filters_of, settings_of
from mm_assets.settings import Settings, variable
from mm_assets.settings_file import given_settings


def asked_filters(
    values: Sequence[str], preset: str | None = None, actions: str | None = None
) -> tuple[Filter[Any], ...]:
    """Return the filters that are on.

    Args:
        values: settings of filters, each as ``name=value``; ``name=`` unsets one.
        preset: in the place of that of the settings.
        actions: what filters do, as in the setting ``filter_actions``, in its place.

    Raises:
        ValueError: in one line, for an unknown name, and for values that do not fit.
    """
    known = {setting.name for setting in settings_of(Settings.load().filters)}
    environment = dict(given_settings())
    unset: set[str] = set()
    for text in values:
        name, sign, value = text.partition("=")
        if not sign:
            raise ValueError(f"--set {text!r}: write it as NAME=VALUE")
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"the nearest is {near[0]}" if near else f"there are {', '.join(sorted(known))}"
            raise ValueError(f"--set {name}: there is no such setting of a filter; {hint}")
        environment[variable(name)] = value
        (unset.discard if value else unset.add)(name)
    if preset is not None:
        environment[variable("filter_preset")] = preset
    if actions is not None:
        environment[variable("filter_actions")] = actions
    settings = Settings.load(environment)
    found = {**settings.filter_values(), **dict.fromkeys(unset)}
    return filters_of(settings.filters, found, settings.filter_actions)
