"""Commands on what a storage keeps: ``publish``, ``tag``, ``retire``, ``erase``.

publish DST             copy outputs to a bucket, folder or Hub data set, and prove them equal
tag NAME                mark the state of all outputs
retire [PARTITION ...]  remove the outputs of raw shards that are gone
erase                   take samples and images out of everything, with a certificate
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from mm_assets.cli import arguments
from mm_assets.cli.arguments import absolute_root, add_storage_flag, as_utf8, location, storage_root
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
    found = [f"run {run.run_id}" for run in unfinished_runs(instance)]
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


def erase_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "erase",
        help="take samples or images out of all outputs, versions and logs, keep them out, and prove it",
        description="Take samples and images out of all that is in MM_STORAGE and of Dagster's event log, "
        "keep them out of what is read from now on, and prove it by a scan of every file. Called again, "
        "also without any, it finishes what is unfinished.",
    )
    for flag, (kind, metavar, what) in _ERASED_BY.items():
        parser.add_argument(
            flag, dest="entries", action="append", type=_entry(kind), metavar=metavar, help=what
        )
    parser.add_argument(
        "--image",
        dest="images",
        action="append",
        type=location,
        metavar="FILE",
        help="images with the bytes of this one, and those that look like it (extra scores)",
    )
    parser.add_argument(
        "--from",
        dest="lists",
        action="append",
        type=location,
        metavar="FILE",
        help="CSV, JSON lines or Parquet with the columns kind (sample_id, url, sha256, md5, pdq) and value",
    )
    parser.add_argument("--dry-run", action="store_true", help="print where it is, and change nothing")
    parser.add_argument("--raw", action="store_true", help="write raw tars without the samples, too")
    parser.add_argument("--drop-tags", action="store_true", help="drop the tags that hold it")
    parser.add_argument("--list", action="store_true", help="print the certificates of all erasures")
    parser.set_defaults(run=run_erase)


_ERASED_BY = {
    "--sample-id": ("sample_id", "ID", "a sample"),
    "--url": ("url", "URL", "what has this URL in any column"),
    "--sha256": ("sha256", "HEX", "images with these bytes"),
    "--md5": ("md5", "HEX", "the same by their MD5"),
    "--pdq": ("pdq", "HEX[:RADIUS]", "images that look alike (default radius: 31 of 256 bits)"),
}


def _entry(kind: str) -> Callable[[str], Any]:
    """Return the type of a flag that names what to erase."""

    def parse(text: str) -> Any:
        from mm_assets.versions.erasure_plan import entry_of

        try:
            return entry_of(kind, as_utf8(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse


def run_erase(options: argparse.Namespace) -> int:
    """Erase, and print a line for each step.

    Returns:
        0: the scan has found nothing. 1: something is left.

    Raises:
        ValueError: nothing is named, another erasure is going on, a run or backfill is unfinished, or
            something cannot be written without what is to be erased.
    """
    from mm_assets.accounting.erasures import ErasureStore
    from mm_assets.cli.graph import with_dagster
    from mm_assets.storage.errors import located, readable_store_errors
    from mm_assets.storage.stamps import sole_writer
    from mm_assets.versions.erasure_plan import entries_in, entries_of_image

    root = absolute_root(Settings.load().storage)
    arguments.refuse_other_folder(root, "MM_STORAGE")
    store = ErasureStore(root)
    with located(root), readable_store_errors():
        if options.list:
            for erasure in store.all():
                _print_certificate(erasure)
            return 0
        entries = [
            *(options.entries or ()),
            *(each for uri in options.images or () for each in entries_of_image(uri)),
            *(each for uri in options.lists or () for each in entries_in(uri)),
        ]
        if not entries and options.dry_run:
            raise ValueError("nothing is named to look for: mm-assets erase --help")
        if not entries and not store.unfinished():
            print("nothing is unfinished, and nothing new is named to erase: mm-assets erase --help")
            return 0
        # Locked behind the fork of workers: those of a killed command would keep the lock for a while.
        with with_dagster(), sole_writer(store.folder) as is_ours:
            if not is_ours:
                raise ValueError(
                    f"{root}: another mm-assets erase is going on here: call again at its end; until then "
                    "nothing of this call is blocked"
                )
            return _erase(root, list(dict.fromkeys(entries)), options)


def _erase(root: str, entries: Sequence[Any], options: argparse.Namespace) -> int:
    """Finish what is unfinished, then erase what is named."""
    from mm_assets.accounting.erasures import ErasureStore
    from mm_assets.formats.raw_shards import RawLocations
    from mm_assets.formats.webdataset import RawLayout
    from mm_assets.pool.workers import WorkerPool
    from mm_assets.storage.errors import error_line
    from mm_assets.versions import erasing, erasure_plan

    settings, store = Settings.load(), ErasureStore(root)
    locations = RawLocations(settings.raw_shards, excluded=root, missing_keys=settings.missing_keys)
    shards = locations.shards(settings.shards_per_partition)
    layout = RawLayout(**settings.raw_layout())
    raw = erasure_plan.documents_of(shards, settings.raw_layout())
    with (
        open_dagster(changes_nothing=options.dry_run) as instance,
        WorkerPool(settings.workers, may_fork=True) as workers,
    ):
        pool = _ShownPool(workers)
        orchestrator = _orchestrator(instance)
        done = []

        def checked(plan: Any, named: Sequence[Any], has_raw: bool, dropped: Collection[str] = ()) -> Any:
            erasure_plan.refuse_absent(plan, shards)
            erasure_plan.refuse_listed(plan, settings.active_filters())
            if has_raw:
                plan = erasure_plan.with_raw(plan, named, shards, layout)
            tags = [tag for tag in (*plan.tags, *plan.table_tags) if tag not in dropped]
            if tags and not options.drop_tags:
                raise ValueError(
                    f"{counted(len(tags), 'tag')} would keep it: {', '.join(tags)}: --drop-tags drops "
                    "them; nothing was changed"
                )
            return plan

        resumed = [] if options.dry_run else store.unfinished()
        for erasure in resumed:
            print(f"erasure {erasure.id}: resumed", flush=True)
        waiting = [*resumed]
        stamps: Any = None
        if [*entries] and not any(set(entries) == set(erasure.entries) for erasure in waiting):
            stamps = erasure_plan.stamps_of(root)
            plan = erasure_plan.plan(
                root, entries, pool, raw, is_whole=options.dry_run, home=orchestrator.home
            )
            if options.dry_run:
                _print_plan(plan, entries, shards, root)
                return 0
            plan = checked(plan, entries, options.raw)
            waiting.append(erasing.begin(store, entries, plan, has_raw=options.raw))
            print(f"erasure {waiting[-1].id}: blocked from now on", flush=True)
        orchestrator.refuse_unfinished()
        given = {entry: entry for entry in entries}  # those of a store are without what was given
        for number, erasure in enumerate(waiting):
            # A run that has ended meanwhile may have made more of it.
            is_planned = number == len(resumed) and stamps == erasure_plan.stamps_of(root)
            try:
                if not is_planned and (known := erasing.work_of(store, erasure)) is not None:
                    named = [given.get(entry, entry) for entry in erasure.entries]
                    plan = erasure_plan.plan(root, named, pool, raw, is_whole=False, known=known.needles)
                    plan = checked(plan, named, known.has_raw, [*known.tags, *known.table_tags])
                    erasure = erasing.planned(store, erasure, plan, known)
                work = erasing.Erasing(root, erasure, orchestrator, pool, shards, layout)
                for line in work.run():
                    print(printable(line), flush=True)
            except (OSError, ValueError) as error:  # the others do not wait for it
                print(f"mm-assets: {printable(error_line(error))}", file=sys.stderr, flush=True)
            done.append(store.read(erasure.id))
            _print_certificate(done[-1])
    for erasure in done:
        near = erasure_plan.near_ids(root, [given.get(entry, entry) for entry in erasure.entries])
        print(printable(_verdict(erasure, store.folder, near)))
    return 0 if all(erasure.finished for erasure in done) else 1


class _ShownPool:
    """A pool whose jobs are counted on a progress line: shards that are searched, parts of files."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def map(self, fn: Callable[[Any], Any], jobs: Iterable[Any]) -> Generator[tuple[Any, Any], None, None]:
        """Yield each job and its answer."""
        of = len(jobs) if isinstance(jobs, Sequence) else 0  # a scan makes them on its way
        line = ProgressLine(max(of, 1))
        try:
            for done, answer in enumerate(self._pool.map(fn, jobs), start=1):
                line.show(done if of else 0, f"searched: {done} of {of}" if of else f"scanned: part {done}")
                yield answer
        finally:
            line.end()


def _orchestrator(instance: Any) -> Any:
    from mm_assets.event_log.erasure import erase_events, event_texts
    from mm_assets.headless.instance import home_in_force
    from mm_assets.headless.request import MakeRequest
    from mm_assets.headless.run import due_shards, run_graph
    from mm_assets.versions.erasing import Orchestrator

    def rebuild(partitions: Sequence[str], assets: Sequence[str]) -> list[str]:
        if run_graph(MakeRequest(tuple(partitions), tuple(assets))) == 0 or instance is None:
            return []
        return sorted(due_shards(instance, assets).intersection(partitions))

    def refuse_unfinished() -> None:
        if instance is not None:
            refuse_while_unfinished(instance, "call mm-assets erase again")

    def erase(partitions: Any, is_trace: Any, aliases: Any, reason: str, begun: float) -> int:
        if instance is None:
            return 0
        return erase_events(instance, partitions, is_trace, aliases, reason=reason, begun=begun)

    return Orchestrator(
        "" if instance is None else str(home_in_force()),
        refuse_unfinished,
        rebuild,
        erase,
        lambda: () if instance is None else event_texts(instance),
    )


def _print_plan(plan: Any, entries: Sequence[Any], shards: Any, root: str) -> None:
    """Print where something to erase is, and what an erasure would do."""
    from mm_assets.versions.erasure_plan import absence_of, is_raw_tar, near_ids, raw_files, reasons_of

    if not (is_found := bool(plan.partitions or plan.places or plan.found.samples)):
        print(printable(f"found nowhere: erase would only block it from now on{near_ids(root, entries)}"))
    policy = Settings.load().on_materialize_error
    now = {sample.sample_id for sample in plan.found.samples if not sample.is_past}
    for sample in (one for one in plan.found.samples if not one.is_past or one.sample_id not in now):
        items = counted(len(sample.items), "item")
        goes = f"{items}; the whole sample goes ({policy})" if policy == "drop_sample" else items
        files = {file: sum(name == file for name, _ in sample.members) for file, _ in sample.members}
        places = [f"{counted(count, 'member')} of {file}" for file, count in files.items()]
        print(
            printable(
                f"{sample.partition or 'an earlier state'}: {sample.sample_id}: "
                f"{'the whole sample' if sample.is_whole else goes}; raw: {', '.join(places) or 'unknown'}"
            )
        )
    for place, number in plan.places.items():
        print(printable(f"  {place}: {counted(number, 'file')}"))
    if plan.partitions:
        print(printable(f"to rebuild: {counted(len(plan.partitions), 'shard')} in {', '.join(plan.assets)}"))
    in_part = {one.partition for one in plan.found.samples if not one.is_whole and not one.is_past}
    for partition, why in reasons_of(root, plan, entries).items():
        print(printable(f"  {partition}: {why}"))
        if partition in plan.present and (absence := absence_of(partition, shards)):
            print(printable(f"  {partition}: cannot be rebuilt: {absence}"))
        for file in raw_files(partition, shards):
            refusal = "only items match" if partition in in_part else "" if is_raw_tar(file) else "no tar"
            told = f"--raw would be refused ({refusal})" if refusal else "--raw rewrites it"
            print(printable(f"  raw shard {file}: {told}; without --raw ingest blocks what matches"))
    if tags := [*plan.tags, *plan.table_tags]:
        print(printable(f"dropped with --drop-tags: {', '.join(tags)}"))
    for target in plan.published if is_found else ():
        print(printable(f"published to {target}: publish again, with --delete"))


def _print_certificate(erasure: Any) -> None:
    """Print what an erasure was asked for, and what came of it."""
    kinds = Counter(entry.kind for entry in erasure.entries)
    state = f"finished {erasure.finished}" if erasure.finished else "unfinished: call mm-assets erase again"
    print(f"erasure {erasure.id}: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}; {state}")
    shards, scan = len(erasure.partitions), erasure.scan
    is_of_earlier = not shards and erasure.found.get("samples")
    where = "earlier states alone" if is_of_earlier else counted(shards, "shard")
    print(f"  matched: {counted(sum(erasure.partitions.values()), 'row')} in {where}")
    if not scan:
        return
    found = counted(len(scan["occurrences"]), "match", "matches")
    result = found if scan["searched_for"] or scan["occurrences"] else "nothing was searched for"
    print(f"  scan of {scan['files']:,} files, {scan['bytes']:,} bytes: {result}")
    for one in scan["occurrences"]:
        print(printable(f"  left: {one['kind']} in {one['place']} {one['inside']}".rstrip()))
    for kind, count in scan["not_searched_for"].items():
        print(printable(f"  not searched for: {count} ({kind})"))
    for line in scan["out_of_scope"]:
        print(printable(f"  out of scope: {line}"))


def _verdict(erasure: Any, folder: str, near: str) -> str:
    """Return the line that says how an erasure has ended."""
    if not erasure.finished:
        left = counted(len(erasure.scan.get("occurrences", ())), "match", "matches")
        return f"not erased: {left} left, as said above: call mm-assets erase again"
    samples, shards = erasure.found.get("samples", 0), len(erasure.partitions)
    if not samples and not shards:
        return f"found nowhere: kept out from now on{near}"
    what = f"{counted(samples, 'sample')} in {counted(shards, 'shard')}"
    return f"erased: {what}; no match is left; certificate: {folder}/{erasure.id}.json"
