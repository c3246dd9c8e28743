"""Command ``mm-assets retire [PARTITION ...]``: remove the outputs of raw shards that are gone."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from mm_assets.interleaved.counted import counted
from mm_assets.terminal import printable


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "retire",
        help="remove the outputs of raw shards that are gone",
        description="Remove the outputs of raw shards that are gone, by MM_RAW_SHARDS, from MM_STORAGE.",
    )
    parser.add_argument(
        "partitions", metavar="PARTITION", nargs="*", help="shards (default: all whose raw shard is gone)"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the shards, and remove nothing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print each shard that is retired; on stderr those that stay though their raw shard is not listed.

    Returns:
        0: done. 1: a shard stays.

    Raises:
        ValueError: a named shard is unknown, none of the storage's shards is listed, more than half of them
            would go without having been named, or a run or a backfill is unfinished.
        OSError: the raw shards cannot be listed.
    """
    from mm_assets.accounting.retirement import Retirement, retirable
    from mm_assets.cli.storage_root import settings_root
    from mm_assets.formats.error_lines import readable_store_errors
    from mm_assets.formats.error_places import located
    from mm_assets.formats.raw_absence import RawAbsence
    from mm_assets.formats.raw_shards import RawLocations
    from mm_assets.settings import Settings

    settings = Settings.load()
    root = settings_root(settings)
    with readable_store_errors(), _dagster() as instance:
        locations = RawLocations(settings.raw_shards, excluded=root, missing_keys=settings.missing_keys)
        listing = locations.shards(settings.shards_per_partition)
        with located(root):
            retirement = Retirement(root)
            known = retirement.partitions() | set(_known_to(instance))
        keys: list[str] = []
        kept: list[str] = []
        absence = RawAbsence(locations, listing)
        for key in retirable(known, listing, options.partitions, root):
            reason = absence.reason_to_keep(key, is_named=bool(options.partitions))
            (keys if reason is None else kept).append(reason or key)
        if not options.partitions:
            _refuse_unlikely(keys, known, listing.unmatched)
        if keys and instance is not None and not options.dry_run:
            _refuse_while_unfinished(instance)
        for reason in kept:
            print(f"mm-assets: kept: {printable(reason)}", file=sys.stderr)
        for key in keys:
            print(f"{'would retire' if options.dry_run else 'retiring'} {printable(key)}", flush=True)
        if keys and not options.dry_run:
            with located(root):
                for step in retirement.run(keys, lambda gone: _forget(instance, gone)):
                    print(f"  removed from {step}", flush=True)
    if not keys and not kept:
        print("no raw shard is gone: nothing to retire")
    return 1 if kept else 0


def _refuse_unlikely(keys: Sequence[str], known: Collection[str], unmatched: Sequence[str]) -> None:
    """Raise where the settings, or a disk, are more likely to be wrong than shards to be gone."""
    if keys and unmatched:
        raise ValueError(f"{unmatched[0]}; name the shards to retire them all the same")
    if len(keys) > len(known) / 2:
        raise ValueError(
            f"{len(keys)} of {counted(len(known), 'shard')} would be retired: is MM_RAW_SHARDS right? "
            "Name the shards to retire them all the same"
        )


def _refuse_while_unfinished(instance: Any) -> None:
    """Raise where a run, or a backfill's next one, may write what is being removed."""
    from mm_assets.automation.backfills import unfinished_backfills
    from mm_assets.io_managers.instance_queries import unfinished_runs
    from mm_assets.io_managers.lost_runs import fail_lost_runs

    fail_lost_runs(instance)
    found = [f"run {run.run_id}" for run in unfinished_runs(instance)]
    found += [f"backfill {backfill.backfill_id}" for backfill in unfinished_backfills(instance)]
    if found:
        raise ValueError(f"{found[0]} is unfinished; retire when it has ended, or end it")


@contextmanager
def _dagster() -> Iterator[Any]:
    """The Dagster instance in force; None without Dagster, or where no home exists."""
    from mm_assets.headless.home import home_in_force

    home = home_in_force()
    if find_spec("dagster") is None or not home.is_dir():
        yield None
        return
    from mm_assets.headless.instance import open_instance

    os.environ["DAGSTER_HOME"] = str(home)
    with open_instance(home) as instance:
        yield instance


def _known_to(instance: Any) -> Sequence[str]:
    from_dagster: Sequence[str] = ()
    if instance is not None:
        from mm_assets.partitions import SHARDS

        from_dagster = instance.get_dynamic_partitions(str(SHARDS.name))
    return from_dagster


def _forget(instance: Any, partitions: Sequence[str]) -> None:
    if instance is None:
        print("  no Dagster home in force: delete the partitions there in the UI, if it has them")
        return
    from mm_assets.partitions import delete_partitions

    print(f"  removed from Dagster: {counted(len(delete_partitions(instance, partitions)), 'partition')}")
