"""Filters of one command: those of the settings, with other values over them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from mm_assets.filters.filter import Filter
from mm_assets.filters.registry import filters_of, settings_of
from mm_assets.settings import Settings, variable
from mm_assets.settings_file import given_settings


def filters_with_overrides(options: argparse.Namespace) -> tuple[Filter[Any], ...]:
    """Return the filters that are on, with what the flags say; ``NAME=`` unsets what a preset sets, too.

    Raises:
        ValueError: in one line, for an unknown name, and for values that do not fit.
    """
    over = variables_of(options)
    settings = Settings.load({**given_settings(), **over})
    unset = [known.name for known in settings_of(settings.filters) if over.get(variable(known.name)) == ""]
    found = {**settings.filter_values(), **dict.fromkeys(unset)}
    return filters_of(settings.filters, found, settings.filter_actions)


def variables_of(options: argparse.Namespace) -> dict[str, str]:
    """Return what the flags say as variables of the environment.

    Raises:
        ValueError: in one line, for an unknown name, and for values that do not fit.
    """
    over = _over(options.values)
    if options.filter_preset is not None:
        over[variable("filter_preset")] = options.filter_preset
    if options.filter_actions is not None:
        over[variable("filter_actions")] = options.filter_actions
    Settings.load({**given_settings(), **over})
    return over


def _over(values: Sequence[str]) -> dict[str, str]:
    known = {setting.name for setting in settings_of(Settings.load().filters)}
    over: dict[str, str] = {}
    for text in values:
        name, sign, value = text.partition("=")
        if not sign:
            raise ValueError(f"--set {text!r}: write it as NAME=VALUE")
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"the nearest is {near[0]}" if near else f"there are {', '.join(sorted(known))}"
            raise ValueError(f"--set {name}: there is no such setting of a filter; {hint}")
        over[variable(name)] = value
    return over
