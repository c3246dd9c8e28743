"""The command ``mm-assets prove``: every output read again."""

from __future__ import annotations

import argparse
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "prove", help="read every output of the graph again: is every item as it was written?"
    )
    parser.add_argument(
        "shards",
        nargs="*",
        metavar="SHARD",
        help="names of shards (default: all, and unknown files beside them)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prove the outputs; 0 only if every item is as it was written."""
    from mm_assets.headless.interrupts import watch_for_interrupts

    watch_for_interrupts()
    from mm_assets.headless.run import prove

    return prove(options.shards)
