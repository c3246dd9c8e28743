"""Commands that look at data: ``diff``, ``explain``, ``preview``, ``report``, ``show``, ``status``.

diff A [B]          samples that differ between two states of the outputs, and why
explain SAMPLE_ID   what happened to each item of a sample
preview             what filters would drop, from stored scores, before they do
report              one page about the data set: what went where, and what there is
show SAMPLE_ID      one sample to look at, in the terminal or as an HTML page
status              what is made, failed, outdated and missing, and what automation will do next
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mm_assets.cli import arguments
from mm_assets.cli.arguments import (
    absolute_root,
    add_set_flags,
    add_storage_flag,
    as_utf8,
    filters_with_overrides,
    flag,
    location,
    refuse_other_folder,
    refuse_other_than_file,
    storage_root,
    write_page,
)
from mm_assets.formats.names import TITLES
from mm_assets.model.errors import MmAssetsError, counted, warning_line, write_line
from mm_assets.settings import Settings
from mm_assets.terminal import fail_each, printable, shard_progress

if TYPE_CHECKING:
    from mm_assets.formats.raw_shards import RawShard
    from mm_assets.view.sample import Document, Look


def explain_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explain", help="show what happened to each item of a sample, from its shard to every output"
    )
    parser.add_argument("sample_id")
    add_storage_flag(parser)
    parser.set_defaults(run=run_explain)


def run_explain(options: argparse.Namespace) -> int:
    """Print a table per shard: one line per item, one column per asset.

    Raises:
        ValueError: the id is unknown.
    """
    from mm_assets.accounting import OUTPUTS
    from mm_assets.accounting.erasures import alias_of
    from mm_assets.storage.errors import located
    from mm_assets.storage.files import local_path
    from mm_assets.view.sample import origin_of, place_of
    from mm_assets.view.sample_source import history_of

    root, sample_id = local_path(options.storage or Settings.load().storage), as_utf8(options.sample_id)
    with located(root):
        refuse_other_folder(root)
        if not (shards := history_of(root, sample_id) or history_of(root, alias_of(sample_id))):
            raise ValueError(_unknown_sample(root, sample_id))
    print(f"sample {printable(sample_id)}")
    for shard in shards:
        name, origin = shard.partition or "(not recorded)", origin_of(shard.locator)
        print(f"shard {printable(name)}, from {printable(origin)}")
        rows = [["position", "modality", "source", *(output.asset for output in OUTPUTS)]]
        for item in shard.items:
            moved = "" if item.locator[0] == shard.locator[0] else f"{item.locator[0]}: "
            fates = [item.fates[output.asset] for output in OUTPUTS]
            rows.append([str(item.position), item.modality, moved + place_of(item.locator), *fates])
        _print_table(rows)
    return 0


def _unknown_sample(root: str, sample_id: str) -> str:
    """Return the line about a sample that no output and no ledger has, but maybe raw shards."""
    from mm_assets.accounting.erasures import DenyList
    from mm_assets.accounting.survey_store import SurveyStore

    if (denial := DenyList.read(root).denial_of(sample_id)) is not None:
        return f"{root}: sample {sample_id!r} was {denial.reason}"
    if raw_shards := SurveyStore(root).partitions_with(sample_id):
        hint = "no output of it has landed; the check raw_shards.integrity and the run's log say why"
        return f"{root}: sample {sample_id!r} is in raw shard {', '.join(map(repr, raw_shards))}: {hint}"
    return f"{root}: no sample {sample_id!r}, neither in an output nor in the ledger"


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    cells = [list(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print(f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip())


def statistics_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "statistics",
        help="compute the set-wide statistics that conditions look at, from the stored scores",
        description="Compute the statistics of the whole set that the conditions of the settings look at, "
        "such as sha256_occurrences or clip_similarity_percent_rank, from the stored scores of all shards. "
        "What is filtered from now on is judged by them.",
    )
    add_set_flags(parser)
    add_storage_flag(parser)
    parser.set_defaults(run=run_statistics)


def run_statistics(options: argparse.Namespace) -> int:
    """Compute the statistics and print a line on each.

    Raises:
        ValueError: for settings that do not fit, and for scores that are missing or damaged.
    """
    from mm_assets.view.statistics import compute_statistics

    nothing = "no condition looks at a statistic of the whole set: see docs/filters.md"
    return _run_on_whole_set(options, compute_statistics, nothing)


def _run_on_whole_set(options: argparse.Namespace, work: Callable[..., Any], nothing: str) -> int:
    """Do what looks at the stored scores of all shards, for the filters of the settings; print its lines."""
    root = storage_root(options)
    refuse_other_folder(root)
    with shard_progress() as progress:
        found = work(root, filters_with_overrides(options), progress)
    for line in found.lines() or [nothing]:
        print(printable(line))
    return 0


def duplicates_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "duplicates",
        help="find duplicate images and documents in all shards, from the stored scores",
        description="Find the duplicates that MM_DEDUP_IMAGES and MM_DEDUP_DOCUMENTS have dropped, among all "
        "shards, from the stored scores. What is filtered from now on is judged by the verdicts.",
    )
    add_set_flags(parser)
    add_storage_flag(parser)
    parser.set_defaults(run=run_duplicates)


def run_duplicates(options: argparse.Namespace) -> int:
    """Find duplicates and print how many, and the largest clusters.

    Raises:
        ValueError: for settings that do not fit, and for scores that are missing or damaged.
    """
    from mm_assets.duplicates.finder import find_duplicates

    nothing = "set MM_DEDUP_IMAGES or MM_DEDUP_DOCUMENTS: see docs/guides/duplicates.md"
    return _run_on_whole_set(options, find_duplicates, nothing)


_FOR_WORKERS = 20  # shards: to start workers takes longer than to read fewer


def preview_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "preview",
        help="say what filters would drop, from stored scores, and show what is near their bounds",
        description="Say what the filters of the settings would drop, each alone and all together, from the "
        "stored scores of the graph. Nothing is changed, and no image is measured.",
    )
    parser.add_argument(
        "shards", nargs="*", metavar="SHARD", help="these shards (default: up to 400, evenly spread)"
    )
    add_set_flags(parser)
    parser.add_argument(
        "--html", type=location, metavar="FILE", help="write one page, with curves and images; - is stdout"
    )
    add_storage_flag(parser)
    parser.set_defaults(run=run_preview)


def run_preview(options: argparse.Namespace) -> int:
    """Print the counts or write the page; 1 if scores are missing.

    Raises:
        ValueError: for settings that do not fit, and for shards that are unknown or damaged.
    """
    from mm_assets.pool.workers import WorkerPool
    from mm_assets.view.preview_page import (
        HEADS,
        HOW_TO_SET,
        count_rows,
        distribution_rows,
        faults,
        left_out,
        page_title,
        preview_page,
        summary,
    )
    from mm_assets.view.preview_scores import StoredScores
    from mm_assets.view.preview_study import study

    if options.html:
        refuse_other_than_file(options.html)
    filters = filters_with_overrides(options)
    root = storage_root(options)
    refuse_other_folder(root)
    settings = Settings.load()
    stored = StoredScores(root, [as_utf8(name) for name in options.shards], _raw_version(settings, root))
    shards = len(stored.shards)
    if not shards:
        return fail_each([printable(line) for line in left_out(stored)])
    with shard_progress() as progress, WorkerPool(settings.workers, may_fork=True) as pool:
        used = pool if shards >= _FOR_WORKERS else None
        found = study(stored, filters, used, progress, is_shown=bool(options.html))
    if options.html:
        write_page(options.html, preview_page(stored, found))
    if options.html != "-":
        print(page_title(stored))
        _print_table([[*HEADS], *count_rows(found)] if found.counts.filters else [])
        _print_table(distribution_rows(found) if found.distributions else [])
        for line in summary(found):
            print(printable(line))
        if not filters:
            print(f"no filter is on; {HOW_TO_SET}")
    return fail_each([printable(line) for line in faults(stored, found)])


def report_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="write one HTML page about the data set: what went where and why, and what is in it",
        description="Write one HTML page about the data set, from accounts and stored scores: how many items "
        "each step takes and why, scores before and after the filters, languages, domains, licences, proof.",
    )
    parser.add_argument(
        "--output",
        type=location,
        metavar="FILE",
        help="default: report/index.html of MM_STORAGE; - is stdout",
    )
    parser.add_argument(
        "--summary",
        choices=("eu",),
        help="instead, as Markdown, the figures that the EU asks for of training data (AI Act, article 53); "
        "default output: stdout",
    )
    add_storage_flag(parser)
    parser.set_defaults(run=run_report)


def run_report(options: argparse.Namespace) -> int:
    """Write the page, and print where it is and its first words.

    Raises:
        ValueError: nothing is recorded there, or a file is damaged; in one line.
    """
    from mm_assets.storage.files import join
    from mm_assets.view.report import REPORT, gather, gather_sources, summary
    from mm_assets.view.report_page import PAGE, eu_summary, report_page

    if options.output:
        refuse_other_than_file(options.output)
    root = storage_root(options)
    refuse_other_folder(root)
    with shard_progress() as progress:
        report = gather(root, progress)
        if options.summary:
            page = eu_summary(report, gather_sources(root, progress))
        else:
            page = report_page(report)
    write_page(options.output or ("-" if options.summary else join(root, REPORT, PAGE)), page)
    if options.output != "-" and not options.summary:
        print(summary(report))
    return fail_each([printable(line) for line in report.notes])


def _raw_version(settings: Settings, root: str) -> Callable[[str], str | None]:
    """Return what gives the version of a raw shard; nothing of those of another storage root's data."""
    from mm_assets.formats.raw_shards import RawLocations
    from mm_assets.storage.errors import readable_store_errors

    listing: Mapping[str, RawShard] = {}
    if settings.raw_shards and absolute_root(settings.storage) == root:
        # Scores are shown all the same where raw shards are out of reach, or cannot be told apart.
        with suppress(OSError, MmAssetsError), readable_store_errors():
            listing = RawLocations(
                settings.raw_shards, excluded=root, missing_keys=settings.missing_keys
            ).shards(settings.shards_per_partition)
    return lambda key: listing[key].version if key in listing else None


_WIDTH = 100  # of lines that go into a file or another program


def show_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "show", help="show one sample, its texts and images in order, and what was dropped and why"
    )
    parser.add_argument("sample_id")
    parser.add_argument(
        "src",
        nargs="?",
        type=location,
        help=f"file, folder, glob or URL of {TITLES} data (default: the outputs of the graph)",
    )
    parser.add_argument(
        "--html", type=location, metavar="FILE", help="write one HTML page with the images; - is stdout"
    )
    add_storage_flag(parser)
    arguments.add_layout_flags(parser)
    parser.set_defaults(run=run_show)


def run_show(options: argparse.Namespace) -> int:
    """Print the sample, or write its page.

    Raises:
        ValueError: the id is unknown.
    """
    from mm_assets.view.sample import coloured, embedding, no_picture, sample_page

    sample_id = as_utf8(options.sample_id)
    if options.html:
        refuse_other_than_file(options.html)
    is_terminal = sys.stdout.isatty()
    has_colours = is_terminal and os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    look = embedding() if options.html else coloured if has_colours else no_picture
    notes: list[str] = []
    failures: list[str] = []
    if options.src is None:
        documents = _in_storage(options, sample_id, look)
    else:
        documents, notes, failures = _in_dataset(options, sample_id, look)
    if options.html:
        write_page(options.html, sample_page(sample_id, documents, notes))
    else:
        _print(sample_id, documents, notes, is_terminal)
    return fail_each(failures)


def _in_storage(options: argparse.Namespace, sample_id: str, look: Look) -> list[Document]:
    from mm_assets.accounting.erasures import alias_of
    from mm_assets.storage.errors import located
    from mm_assets.storage.files import local_path
    from mm_assets.view.sample_source import documents_in_storage, ids_alike

    if given := [name for name in Settings.load().raw_layout() if getattr(options, name) is not None]:
        raise ValueError(f"{flag(given[0])} is about documents of others: name their data")
    root = local_path(options.storage or Settings.load().storage)
    with located(root):
        refuse_other_folder(root)
        documents = documents_in_storage(root, sample_id, look)
        documents = documents or documents_in_storage(root, alias_of(sample_id), look)
        if not documents:
            line = _unknown_sample(root, sample_id)
            raise ValueError(line + _hint(ids_alike(root, sample_id)))
    return documents


def _in_dataset(
    options: argparse.Namespace, sample_id: str, look: Look
) -> tuple[list[Document], list[str], list[str]]:
    """Return the sample in each partition, notes on the search, and a line for what cannot be read."""
    from mm_assets.formats.raw_shards import location_of
    from mm_assets.formats.registry import detect_format
    from mm_assets.storage.errors import located
    from mm_assets.view.sample_source import search

    if options.storage is not None:
        raise ValueError("--storage names outputs of the graph: give it, or other data, not both")
    source = location_of(options.src)
    with located(source):
        kind = detect_format(source)
        arguments.refuse_inapplicable_flags(options, kind, source)
        layout = arguments.layout_of(options, kind, source)
    found = search(source, kind, layout, sample_id, look)
    if not found.documents:
        line = f"{source}: no sample {sample_id!r}{_hint(found.alike)}"
        raise ValueError("; ".join([line, *found.failures]))
    notes = []
    if found.unsearched:
        notes.append(f"{counted(found.unsearched, 'further shard')} not looked in, as it was found before")
    return found.documents, notes, found.failures


def _hint(alike: Sequence[str]) -> str:
    return f"; ids that contain it: {', '.join(map(repr, alike))}" if alike else ""


def _print(sample_id: str, documents: Sequence[Document], notes: Sequence[str], is_terminal: bool) -> None:
    from mm_assets.view.sample import lines

    width = shutil.get_terminal_size((_WIDTH, 0)).columns if is_terminal else _WIDTH
    print(f"sample {printable(sample_id)}")
    for document in documents:
        for line in lines(document, width):
            print(line)
    for note in notes:
        print(note)


def status_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "status",
        help="show what is made, failed, outdated and missing, and what comes next",
        description="Show from the records of MM_STORAGE and DAGSTER_HOME what is made of the raw shards in "
        "MM_RAW_SHARDS, and what automation will do next. Nothing is changed.",
    )
    parser.add_argument("--json", action="store_true", dest="is_json", help="print the same as JSON")
    parser.set_defaults(run=run_status)


def run_status(options: argparse.Namespace) -> int:
    """Print the figures of all shards; 0 also if some have failed."""
    from mm_assets.headless.instance import home_in_force, import_dagster, watch_for_interrupts

    watch_for_interrupts()
    import_dagster()
    from mm_assets.headless.run import find_status

    status, outlook = find_status()
    if options.is_json:
        places = {"storage": absolute_root(Settings.load().storage), "home": str(home_in_force())}
        print(json.dumps({**places, **asdict(status), "next": asdict(outlook)}, indent=2))
        return 0
    for line in status.warnings:
        write_line(warning_line(line))
    gone = f"; {status.gone:,} more gone (mm-assets retire)" if status.gone else ""
    print(f"{counted(status.raw_shards, 'raw shard')}{gone}")
    _print_table(status.rows())
    for name, text in {**status.sentences(), **outlook.sentences()}.items():
        print(f"{name}: {printable(text)}")
    return 0


def diff_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "diff", help="list the samples added, dropped and changed between two tags, and why"
    )
    parser.add_argument("a", metavar="A", help="a tag, or now for the current state")
    parser.add_argument("b", metavar="B", nargs="?", default="now", help="the same (default: now)")
    add_storage_flag(parser)
    parser.set_defaults(run=run_diff)


def run_diff(options: argparse.Namespace) -> int:
    """Print a line per shard and sample, tab-separated, then a summary of each output.

    Raises:
        FileNotFoundError: there is no such tag.
    """
    from mm_assets.pool.workers import WorkerPool
    from mm_assets.storage.errors import located, readable_store_errors
    from mm_assets.versions.diff import Diff

    root = storage_root(options)
    summary = _Summary()
    with (
        located(root),
        readable_store_errors(),
        WorkerPool(Settings.load().workers, may_fork=True) as pool,
        Diff(root, options.a, options.b, pool) as diff,
    ):
        for partition, before, after, differences in diff.partitions():
            summary.add_partition(before, after)
            for found in differences:
                summary.add(found)
                cells = (found.change, partition, found.sample_id, ",".join(found.assets), found.why)
                print("\t".join(map(printable, cells)))
    summary.print()
    return 0


class _Summary:
    """Counts of shards and samples by output, and of samples by reason."""

    def __init__(self) -> None:
        self._shards: Counter[tuple[str, str]] = Counter()
        self._samples: Counter[tuple[str, str]] = Counter()
        self._reasons: Counter[tuple[str, str, str]] = Counter()

    def add_partition(self, before: Any, after: Any) -> None:
        """Count a shard that differs in some output."""
        from mm_assets.versions.diff import ADDED, CHANGED, DROPPED

        for asset in before.keys() | after.keys():
            if asset not in before:
                self._shards[asset, ADDED] += 1
            elif asset not in after:
                self._shards[asset, DROPPED] += 1
            elif before[asset].version != after[asset].version:
                self._shards[asset, CHANGED] += 1

    def add(self, found: Any) -> None:
        """Count a sample that differs."""
        for asset in found.assets:
            self._samples[asset, found.change] += 1
            for reason in found.reasons:
                self._reasons[asset, found.change, reason] += 1

    def print(self) -> None:
        """Print the counts; one line where nothing differs."""
        from mm_assets.accounting import BY_ASSET
        from mm_assets.versions.diff import ADDED, CHANGED, DROPPED

        if not self._shards:
            print("no difference")
        for asset in BY_ASSET:
            changes = (ADDED, DROPPED, CHANGED)
            if not any(self._shards[asset, change] for change in changes):
                continue
            shards, samples = (
                ", ".join(f"{counts[asset, change]} {change}" for change in changes)
                for counts in (self._shards, self._samples)
            )
            print(f"{asset}: samples {samples}; shards {shards}")
            for (of, change, reason), count in sorted(self._reasons.items()):
                if of == asset:
                    print(f"  {count} {change}: {printable(reason)}")
