"""The command ``mm-assets run``: the graph without a browser."""

from __future__ import annotations

import argparse
import os
from typing import Any

from mm_assets.cli.filter_flags import add_set_flags


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="take raw shards through the graph, without a browser",
        description="Take raw shards (MM_RAW_SHARDS) through the graph, in runs of up to 100. What is up to "
        "date is neither read nor written again. With --missing, --failed or --changed only such shards "
        "are looked at.",
    )
    parser.add_argument("shards", nargs="*", metavar="SHARD", help="names of raw shards (default: all)")
    parser.add_argument("--assets", type=_names, default=(), metavar="A,B", help="these assets only")
    parser.add_argument(
        "--missing", dest="kinds", action="append_const", const="missing", help="shards that were never made"
    )
    parser.add_argument(
        "--failed", dest="kinds", action="append_const", const="failed", help="shards whose last run failed"
    )
    parser.add_argument(
        "--changed",
        dest="kinds",
        action="append_const",
        const="stale",
        help="shards made from other raw data, code or settings than there are now, or damaged since",
    )
    parser.add_argument("--limit", type=_count, metavar="N", help="at most N shards")
    parser.add_argument("--dry-run", action="store_true", help="print what would be made, and why")
    add_set_flags(parser.add_argument_group("filters of this run, in the place of those of the settings"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the graph; 0 only if every shard landed, lost no more than ``MM_MAX_LOSS`` and is proven."""
    from mm_assets.headless.interrupts import watch_for_interrupts

    watch_for_interrupts()
    if options.values or options.filter_preset is not None or options.filter_actions is not None:
        _use_filters(options)
    from mm_assets.headless.request import MakeRequest
    from mm_assets.headless.run import run_graph

    request = MakeRequest(tuple(options.shards), options.assets, tuple(options.kinds or ()), options.limit)
    return run_graph(request, is_dry=options.dry_run)


def _use_filters(options: argparse.Namespace) -> None:
    """Give this process, and its workers, the filters that the flags ask for."""
    from mm_assets.cli.filter_overrides import filters_with_overrides, variables_of
    from mm_assets.settings import Settings

    os.environ.update(variables_of(options))
    if Settings.load().active_filters() != filters_with_overrides(options):
        raise ValueError("--set NAME= cannot unset what a preset sets; give it a value that refuses nothing")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"not names separated by commas: {text!r}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or not int(text):
        raise argparse.ArgumentTypeError(f"not a number of shards: {text!r}")
    return int(text)
