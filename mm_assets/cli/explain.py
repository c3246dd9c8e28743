"""The command ``mm-assets explain SAMPLE_ID``: what happened to each item of a sample."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mm_assets.cli.arguments import as_utf8
from mm_assets.cli.storage_root import add_storage_flag, refuse_other_folder
from mm_assets.terminal import printable


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explain", help="show what happened to each item of a sample, from its shard to every output"
    )
    parser.add_argument("sample_id")
    add_storage_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a table per shard: one line per item, one column per asset.

    Raises:
        ValueError: the id is unknown.
    """
    from mm_assets.accounting.history import history_of, origin_of, place_of, surveyed_in
    from mm_assets.accounting.outputs import OUTPUTS
    from mm_assets.formats.error_places import located
    from mm_assets.formats.storage import local_path
    from mm_assets.settings import Settings

    root = local_path(options.storage or Settings.load().storage)
    sample_id = as_utf8(options.sample_id)
    with located(root):
        refuse_other_folder(root)
        shards = history_of(root, sample_id)
    if not shards:
        raise ValueError(unknown_sample(root, sample_id, surveyed_in(root, sample_id)))
    print(f"sample {printable(sample_id)}")
    for shard in shards:
        source = shard.locator[0]
        origin = origin_of(shard.locator)
        print(f"shard {printable(shard.partition or '(not recorded)')}, from {printable(origin)}")
        rows = [["position", "modality", "source", *(output.asset for output in OUTPUTS)]]
        for item in shard.items:
            moved = "" if item.locator[0] == source else f"{item.locator[0]}: "
            fates = [item.fates[output.asset] for output in OUTPUTS]
            rows.append([str(item.position), item.modality, moved + place_of(item.locator), *fates])
        _print_table(rows)
    return 0


def unknown_sample(root: str, sample_id: str, raw_shards: Sequence[str]) -> str:
    """Return the line about a sample that no output and no ledger has, but maybe raw shards."""
    if raw_shards:
        hint = "no output of it has landed; the check raw_shards.integrity and the run's log say why"
        return f"{root}: sample {sample_id!r} is in raw shard {', '.join(map(repr, raw_shards))}: {hint}"
    return f"{root}: no sample {sample_id!r}, neither in an output nor in the ledger"


def _print_table(rows: list[list[str]]) -> None:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print(f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip())
