"""Command ``mm-assets tag NAME``: mark the state of all outputs."""

from __future__ import annotations

import argparse
from typing import Any

from mm_assets.cli.storage_root import add_storage_flag, storage_root
from mm_assets.interleaved.counted import counted


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("tag", help="mark the state of all outputs under a name, or list the tags")
    parser.add_argument("name", nargs="?", help="name of the new tag")
    parser.add_argument("--list", action="store_true", dest="lists", help="list the tags")
    add_storage_flag(parser)
    parser.set_defaults(run=lambda options: run(options, parser))


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Make a tag, or list all.

    Raises:
        ValueError: the tag exists and marks another state, or an output is not as it was written.
    """
    from mm_assets.formats.error_lines import readable_store_errors
    from mm_assets.formats.error_places import located

    if options.lists == (options.name is not None):
        parser.error("give the name of a new tag, or --list")
    root = storage_root(options)
    with located(root), readable_store_errors():
        return _list(root) if options.lists else _tag(root, options.name)


def _tag(root: str, name: str) -> int:
    from mm_assets.settings import Settings
    from mm_assets.versions.manifest import Manifest
    from mm_assets.versions.output_state import ASSETS
    from mm_assets.versions.tagging import Tagger
    from mm_assets.workers import WorkerPool

    with WorkerPool(Settings.load().workers, may_fork=True) as pool:
        is_new = Tagger(root, name, pool).run()
    print(f"tag {name}{'' if is_new else ' marks this state already'}")
    by_asset = Manifest(root, name).header["assets"]
    for asset in (asset for asset in ASSETS if asset in by_asset):
        sums = by_asset[asset]
        nouns = ("shard", "row", "sample", "byte") if sums["rows"] else ("shard", "byte")
        print(f"  {asset}: {', '.join(counted(sums[f'{noun}s'], noun) for noun in nouns)}")
    return 0


def _list(root: str) -> int:
    from mm_assets.versions.manifest import Manifest, tag_names

    headers = [Manifest(root, name).header for name in tag_names(root)]
    if not headers:
        print(f"no tags in {root}")
    for header in sorted(headers, key=lambda header: str(header["created"])):
        shards = max((sums["shards"] for sums in header["assets"].values()), default=0)
        table = "" if header["lance_version"] is None else f", version {header['lance_version']} of the table"
        print(f"{header['tag']}: {header['created'][:19]} UTC, {counted(shards, 'shard')}{table}")
    return 0
