"""Command ``mm-assets verify A B [C …]``."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from mm_assets.cli import raw_layout
from mm_assets.cli.arguments import location
from mm_assets.formats.format_table import TITLES


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "verify", help="prove that datasets hold the same items, or name what differs"
    )
    for name in ("a", "b"):
        kinds = f"file, folder, glob or URL of {TITLES} data"
        parser.add_argument(name, metavar=name.upper(), type=location, help=kinds)
    # Without a default argparse counts C as required, and says so where B is missing.
    parser.add_argument("more", metavar="C", nargs="*", default=[], type=location, help="further datasets")
    raw_layout.add_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what each dataset holds, and ``equal``.

    Otherwise name on stderr the differences between the first dataset and each other one.
    """
    from mm_assets.accounting.canonical.sources import canonical_sources
    from mm_assets.accounting.comparison import Dataset, compare
    from mm_assets.formats.error_places import located
    from mm_assets.formats.made_shards import location_of

    datasets: dict[str, Dataset] = {}
    for number, source in enumerate([options.a, options.b, *options.more]):
        name = chr(ord("A") + number)
        with located(source):
            dataset = datasets[name] = Dataset(
                canonical_sources(
                    location_of(source), partial(raw_layout.layout_of, options, is_compared=True)
                )
            )
            stats = dataset.stats
        kind = dataset.sources[0].kind if dataset.sources else "empty"
        print(
            f"{name}: {source}: {kind}, {stats.samples} samples, {stats.rows} rows, {stats.images} images, "
            f"digest {stats.digest}",
            flush=True,
        )
    first, *others = datasets
    is_equal = True
    for name in others:
        found = compare(datasets[first], datasets[name], names=(first, name))
        for difference in found.differences:
            print(f"mm-assets: difference: {difference}", file=sys.stderr)
        if found.is_cut:
            print(
                f"mm-assets: difference: {found.items} items in all differ between {first} and {name}",
                file=sys.stderr,
            )
        is_equal &= found.is_equal
    if is_equal:
        print("equal")
    return 0 if is_equal else 1
