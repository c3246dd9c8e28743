"""Flags of the filters, a flag for each of their settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mm_assets.cli.raw_layout import names

if TYPE_CHECKING:
    from mm_assets.filters.score_filter import ScoreFilter


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    from mm_assets.filters.registry import FILTERS, settings_of

    group = parser.add_argument_group("filters", "images that are dropped; without a flag none are")
    for known in settings_of(FILTERS):
        kind: Callable[[str], Any] = names if known.kind is tuple else known.kind
        group.add_argument(
            f"--{known.name.replace('_', '-')}", type=kind, help=known.meaning.replace("%", "%%")
        )


def filters_asked_for(options: argparse.Namespace) -> tuple[ScoreFilter, ...]:
    """The filters whose flags are given."""
    from mm_assets.filters.registry import FILTERS, filters_of

    return filters_of(FILTERS, vars(options))
