"""The command ``mm-assets run``: the graph without a browser."""

from __future__ import annotations

import argparse
from typing import Any


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
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the graph; 0 only if every shard landed, lost no more than ``MM_MAX_LOSS`` and is proven."""
    from mm_assets.headless.interrupts import watch_for_interrupts

    watch_for_interrupts()
    from mm_assets.headless.request import MakeRequest
    from mm_assets.headless.run import run_graph

    request = MakeRequest(tuple(options.shards), options.assets, tuple(options.kinds or ()), options.limit)
    return run_graph(request, is_dry=options.dry_run)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"not names separated by commas: {text!r}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"not a number of shards: {text!r}")
    return int(text)
