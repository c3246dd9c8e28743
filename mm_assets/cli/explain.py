"""The command ``mm-assets explain SAMPLE_ID``: what happened to each item of a sample."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from typing import Any

from mm_assets.cli.storage_root import add_storage_flag
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
    from mm_assets.accounting.history import history_of, surveyed_in
    from mm_assets.accounting.outputs import OUTPUTS
    from mm_assets.formats.error_places import located
    from mm_assets.formats.storage import local_path
    from mm_assets.settings import Settings

    root = local_path(options.storage or Settings.load().storage)
    sample_id = _as_utf8(options.sample_id)
    with located(root):
        _refuse_other_folder(root, {output.folder for output in OUTPUTS})
        shards = history_of(root, sample_id)
    if not shards:
        if raw_shards := surveyed_in(root, sample_id):
            hint = "no output of it has landed; the check raw_shards.integrity and the run's log say why"
            raise ValueError(
                f"{root}: sample {sample_id!r} is in raw shard {', '.join(map(repr, raw_shards))}: {hint}"
            )
        raise ValueError(f"{root}: no sample {sample_id!r}, neither in an output nor in the ledger")
    print(f"sample {printable(sample_id)}")
    for shard in shards:
        source, *place = shard.locator
        origin = f"{source}: {_place(place)}" if source else "an unknown source"
        print(f"shard {printable(shard.partition or '(not recorded)')}, from {printable(origin)}")
        rows = [["position", "modality", "source", *(output.asset for output in OUTPUTS)]]
        for item in shard.items:
            moved = "" if item.locator[0] == source else f"{item.locator[0]}: "
            fates = [item.fates[output.asset] for output in OUTPUTS]
            rows.append([str(item.position), item.modality, moved + _place(item.locator[1:]), *fates])
        _print_table(rows)
    return 0


def _refuse_other_folder(root: str, outputs: Collection[str]) -> None:
    """Raise ``FileNotFoundError`` for a missing storage root, or one without any output or ledger."""
    from mm_assets.accounting.ledger import LEDGER_FOLDER
    from mm_assets.formats.absent_paths import absent
    from mm_assets.formats.storage import filesystem

    hint = "name the storage root of the graph with --storage or MM_STORAGE"
    fs, path = filesystem(root)
    try:
        found = {name.rstrip("/").rpartition("/")[2] for name in fs.ls(path, detail=False)}
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{absent(root, fs, path, 'folder')}; {hint}") from error
    if found.isdisjoint({LEDGER_FOLDER, *(folder.partition("/")[0] for folder in outputs)}):
        raise FileNotFoundError(f"{root}: no output of the graph is here; {hint}")


def _as_utf8(argument: str) -> str:
    """Return an id as UTF-8, as in the data, whatever encoding the terminal has."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{argument!a} is not UTF-8, so it is the id of no sample") from error
    return argument


def _place(place: Any) -> str:
    """Return member, bytes and frame of a locator, as far as known."""
    member, offset, size, frame = place
    parts = [member] if member else []
    if offset is not None:
        parts.append(f"@{offset}" if size is None else f"@{offset}+{size}")
    if frame is not None:
        parts.append(f"frame {frame}")
    return " ".join(parts)


def _print_table(rows: list[list[str]]) -> None:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print(f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip())
