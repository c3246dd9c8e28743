"""Flags of the filters: one for each of their settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mm_assets.cli.arguments import names, text, whole_number

if TYPE_CHECKING:
    from mm_assets.filters.filter_chain import FilterChain

_TYPES: dict[type, Callable[[str], Any]] = {tuple: names, int: whole_number, str: text}
_DEST = "filter setting "  # prefix of the name, which an option of the command may have, too


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    from mm_assets.filters.presets import NONE, PRESETS
    from mm_assets.filters.registry import known_filters, settings_of
    from mm_assets.plugins import load_plugins

    group = parser.add_argument_group("filters", "what is dropped; without a flag nothing is")
    filters = known_filters(load_plugins())
    for known in settings_of(filters):
        kind = _TYPES.get(known.kind, known.kind)
        flag, meaning = f"--{known.name.replace('_', '-')}", known.meaning.replace("%", "%%")
        try:
            group.add_argument(
                flag, dest=_DEST + known.name, metavar=known.name.upper(), type=kind, help=meaning
            )
        except argparse.ArgumentError as error:
            raise ValueError(
                f"a filter of a plugin has the setting {known.name!r}: {flag} is taken"
            ) from error
    group.add_argument(
        "--filter-preset", choices=tuple(PRESETS), default=NONE, help="filters that are set together"
    )
    group.add_argument(
        "--filter-actions",
        type=names,
        default=(),
        metavar="FILTER=ACTION,…",
        help="what filters do with what they refuse: drop_item, drop_sample or flag",
    )
    parser.set_defaults(filters=filters)


def add_set_flags(parser: argparse._ActionsContainer) -> None:
    """Declare the flags that give a command other filters than the settings do."""
    parser.add_argument(
        "--set",
        dest="values",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of a filter in the place of its value, such as min_sharpness=80; NAME= unsets it",
    )
    parser.add_argument("--filter-preset", metavar="PRESET", help="filters that are set together")
    parser.add_argument(
        "--filter-actions", metavar="FILTER=ACTION,…", help="what filters do with what they refuse"
    )


def chain_asked_for(options: argparse.Namespace) -> FilterChain | None:
    """Return the filters whose flags are given, as one step; None where there is no such flag."""
    from mm_assets.filters.presets import with_preset
    from mm_assets.filters.registry import chain_of, filters_of

    values = {
        name.removeprefix(_DEST): value for name, value in vars(options).items() if name.startswith(_DEST)
    }
    values = with_preset(options.filter_preset, values)
    return chain_of(filters_of(options.filters, values, options.filter_actions))
