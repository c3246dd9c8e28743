"""Commands on states of outputs: ``publish``, ``tag``, ``retire``.

publish DST             copy outputs to a bucket, folder or Hub data set, and prove them equal
tag NAME                mark the state of all outputs
retire [PARTITION ...]  remove the outputs of raw shards that are gone
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from mm_assets.cli import arguments
from mm_assets.cli.arguments import absolute_root, add_storage_flag, location, storage_root
from mm_assets.model.errors import counted, warning_line, write_line
from mm_assets.settings import Settings
from mm_assets.terminal import ProgressLine, printable


def publish_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "publish",
        help="copy outputs to a bucket, folder or Hugging Face data set, and prove that they are equal there",
        description="Copy outputs that are proven to another place, data first, indexes and cards last, and "
        "compare every file there. What is there already is not copied again: call it again to go on.",
    )
    parser.add_argument(
        "target",
        metavar="DST",
        type=location,
        help="a folder, the URL of a bucket, or hf://datasets/USER/NAME",
    )
    parser.add_argument(
        "--outputs",
        type=lambda text: tuple(name for name in text.split(",") if name),
        metavar="A,B",
        help="folders of the storage (default: filtered,webdataset)",
    )
    parser.add_argument(
        "--delete", action="store_true", help="remove files in these folders of DST that are not published"
    )
    add_storage_flag(parser)
    parser.set_defaults(run=run_publish)


def run_publish(options: argparse.Namespace) -> int:
    """Publish, and print what was done.

    Raises:
        ValueError: an output is unknown or not proven, or a file at the target is not as it is here.
    """
    from mm_assets.storage.errors import located, readable_store_errors
    from mm_assets.versions.publishing import DEFAULT_OUTPUTS, Publication
    from mm_assets.versions.targets import target_of
    from mm_assets.view.report import gather
    from mm_assets.view.report_page import cards

    root = storage_root(options)
    arguments.refuse_other_folder(root)
    outputs = options.outputs or DEFAULT_OUTPUTS
    progress = ProgressLine(100)
    try:
        with located(root), readable_store_errors():
            target = target_of(options.target)
            report = gather(root)
            publication = Publication(
                root, target, outputs, lambda assets: cards(root, report, assets), options.delete
            )
            done = publication.run(
                lambda nbytes, of: progress.show(100 * nbytes // max(of, 1), f"{nbytes:,} of {of:,} bytes")
            )
    finally:
        progress.end()
    for line in done.warnings:
        write_line(warning_line(line))
    for path in done.removed:
        print(f"removed {printable(path)}")
    print(
        f"{printable(target.url)}: {counted(done.files, 'file')} of {counted(done.nbytes, 'byte')}, "
        f"{done.copied} copied, all equal ({done.read_back} read back)"
    )
    for line in _due_lines(root, outputs):
        write_line(warning_line(line))
    return 0


def _due_lines(root: str, folders: Sequence[str]) -> list[str]:
    """Return the line on shards that are due in outputs, where Dagster knows of this storage."""
    from mm_assets.accounting import OUTPUTS, TARS, TRAINING_FOLDER
    from mm_assets.storage.errors import error_line

    if find_spec("dagster") is None or absolute_root(Settings.load().storage) != root:
        return []
    from sqlalchemy.exc import SQLAlchemyError

    assets = [output.asset for output in OUTPUTS if output.folder.partition("/")[0] in folders]
    assets += [TARS.asset] if TRAINING_FOLDER in folders else []
    try:
        with open_dagster(changes_nothing=True) as instance:
            if instance is None:
                return []
            from mm_assets.headless.run import due_lines

            return due_lines(instance, assets)
    except (OSError, ValueError, SQLAlchemyError) as error:  # what is published is proven all the same
        return [f"not known whether shards are due: {error_line(error)}"]


def tag_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("tag", help="mark the state of all outputs under a name, or list the tags")
    parser.add_argument("name", nargs="?", help="name of the new tag")
    parser.add_argument("--list", action="store_true", dest="lists", help="list the tags")
    add_storage_flag(parser)
    parser.set_defaults(run=lambda options: run_tag(options, parser))


def run_tag(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Make a tag, or list all.

    Raises:
        ValueError: the tag exists and marks another state, or an output is not as it was written.
    """
    from mm_assets.storage.errors import located, readable_store_errors

    if options.lists == (options.name is not None):
        parser.error("give the name of a new tag, or --list")
    root = storage_root(options)
    with located(root), readable_store_errors():
        return _list(root) if options.lists else _tag(root, options.name)


def _tag(root: str, name: str) -> int:
    from mm_assets.pool.workers import WorkerPool
    from mm_assets.versions import ASSETS
    from mm_assets.versions.tagging import Manifest, Tagger

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
    from mm_assets.versions.tagging import Manifest, tag_names

    headers = [Manifest(root, name).header for name in tag_names(root)]
    if not headers:
        print(f"no tags in {root}")
    for header in sorted(headers, key=lambda header: str(header["created"])):
        shards = max((sums["shards"] for sums in header["assets"].values()), default=0)
        table = "" if header["lance_version"] is None else f", version {header['lance_version']} of the table"
        print(f"{header['tag']}: {header['created'][:19]} UTC, {counted(shards, 'shard')}{table}")
    return 0


def retire_arguments(commands: Any) -> None:
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
    parser.set_defaults(run=run_retire)


def run_retire(options: argparse.Namespace) -> int:
    """Print each shard that is retired; on stderr those that stay though their raw shard is not listed.

    Returns:
        0: done. 1: a shard stays.

    Raises:
        ValueError: a named shard is unknown, none of the storage's shards is listed, more than half of them
            would go without having been named, or a run or a backfill is unfinished.
        OSError: the raw shards cannot be listed.
    """
    from mm_assets.accounting import statistics_folder
    from mm_assets.accounting.erasures import ErasureStore
    from mm_assets.accounting.retirement import Retirement, retirable
    from mm_assets.filters.duplicates import retire_verdicts
    from mm_assets.formats.raw_shards import RawAbsence, RawLocations
    from mm_assets.storage.errors import located, readable_store_errors

    settings = Settings.load()
    root = absolute_root(settings.storage)
    with readable_store_errors(), open_dagster() as instance:
        locations = RawLocations(settings.raw_shards, excluded=root, missing_keys=settings.missing_keys)
        listing = locations.shards(settings.shards_per_partition)
        with located(root):
            retirement = Retirement(root)
            known = retirement.partitions() | set(_known_to(instance))
        keys: list[str] = []
        kept: list[str] = []
        absence = RawAbsence(locations, listing)
        named = set(options.partitions)
        # What cannot be rebuilt may go: an erasure waits for it, and ingest refuses what it erases.
        waiting = {
            key
            for erasure in ErasureStore(root).unfinished()
            for key in named.intersection(erasure.partitions)
        }
        for key in retirable(known, listing, options.partitions, root):
            reason = None if key in waiting else absence.reason_to_keep(key, is_named=bool(named))
            (keys if reason is None else kept).append(reason or key)
        if not options.partitions:
            _refuse_unlikely(keys, known, listing.unmatched)
        if keys and instance is not None and not options.dry_run:
            refuse_while_unfinished(instance)
        for reason in kept:
            print(f"mm-assets: kept: {printable(reason)}", file=sys.stderr)
        for key in keys:
            print(f"{'would retire' if options.dry_run else 'retiring'} {printable(key)}", flush=True)
        if keys and not options.dry_run:
            with located(root):
                # First: nothing else tells of them.
                if others := retire_verdicts(statistics_folder(root), keys):
                    have = counted(others, "other shard has", "other shards have")
                    print(f"  {have} copies of what is gone: mm-assets run --changed filters them anew")
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


def refuse_while_unfinished(instance: Any, command: str = "retire") -> None:
    """Raise where a run, or a backfill's next one, may write what is being removed."""
    from mm_assets.automation.backfills import unfinished_backfills
    from mm_assets.graph.dagster_internals import unfinished_runs
    from mm_assets.graph.instance_queries import fail_lost_runs

    fail_lost_runs(instance)
    found = [f"run {run_retire.run_id}" for run_retire in unfinished_runs(instance)]
    found += [f"backfill {backfill.backfill_id}" for backfill in unfinished_backfills(instance)]
    if found:
        raise ValueError(f"{found[0]} is unfinished; {command} when it has ended, or end it")


@contextmanager
def open_dagster(*, changes_nothing: bool = False) -> Iterator[Any]:
    """The Dagster instance in force; None without Dagster, or where no home exists."""
    from mm_assets.headless.instance import home_in_force

    home = home_in_force()
    if find_spec("dagster") is None or not home.is_dir():
        yield None
        return
    from mm_assets.headless.instance import open_instance

    os.environ["DAGSTER_HOME"] = str(home)
    with open_instance(home, changes_nothing=changes_nothing) as instance:
        yield instance


def _known_to(instance: Any) -> Sequence[str]:
    if instance is None:
        return ()
    from mm_assets.graph.dagster_internals import SHARDS

    return list(instance.get_dynamic_partitions(str(SHARDS.name)))


def _forget(instance: Any, partitions: Sequence[str]) -> None:
    if instance is None:
        print("  no Dagster home in force: delete the partitions there in the UI, if it has them")
        return
    from mm_assets.graph.dagster_internals import delete_partitions

    print(f"  removed from Dagster: {counted(len(delete_partitions(instance, partitions)), 'partition')}")
