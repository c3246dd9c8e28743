"""Command ``mm-assets convert SRC DST --to FORMAT``.

* `run_convert` converts each partition in a worker, by `mm_assets.dataset`; `print_plan` and `print_report`
  tell what would be, and what was, written.
* `summary`: the losses by kind.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mm_assets.cli.arguments import (
    add_filter_flags,
    add_layout_flags,
    chain_asked_for,
    is_ours,
    layout_of,
    location,
    names,
    number_of,
    parsed,
    refuse_inapplicable_flags,
    share,
)
from mm_assets.formats.document_layouts import LAYOUTS
from mm_assets.formats.names import FORMATS, TITLES, format_of, nearest_format
from mm_assets.formats.partitions import parse_bytes
from mm_assets.model.errors import counted
from mm_assets.terminal import fail

if TYPE_CHECKING:
    from mm_assets.formats.reports import WriteReport
    from mm_assets.formats.writer import ExistingPartitions, InterleavedWriter
    from mm_assets.model.losses import Loss


def summary(losses: Iterable[Loss]) -> list[str]:
    """Return a line for what filters took out, one for what they flagged, and one for what is quarantined."""
    losses = list(losses)
    lines = []
    for outcome in ("filtered", "flagged"):
        found = [loss for loss in losses if loss.outcome == outcome]
        if found:
            is_mixed = any(loss.modality != "image" for loss in found)
            lines.append(f"{outcome}: {counted(len(found), 'item' if is_mixed else 'image')}")
    quarantined = [loss for loss in losses if loss.outcome == "quarantined"]
    if quarantined:
        items = Counter(loss.kind for loss in quarantined if loss.is_item)
        damaged_ranges = Counter(loss.kind for loss in quarantined if not loss.is_item)
        parts = [f"{counted(items.total(), 'item')}{_by_kind(items)}"]
        if damaged_ranges:
            stretches = counted(damaged_ranges.total(), "damaged stretch", "damaged stretches")
            parts.append(f"{stretches}{_by_kind(damaged_ranges)}")
        lines.append(f"quarantined: {', '.join(parts)}")
    return lines


def _by_kind(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{kind} {count}' for kind, count in sorted(counts.items()))})" if counts else ""


_NOTES = {
    "unreferenced_members": "members that are no part of any sample",
    "unreferenced_frames": "TIFFs with more frames than references",
    "skipped_members": "members that are no files",
}


def print_plan(existing: ExistingPartitions, writer: InterleavedWriter) -> int:
    """Print what would happen to each partition.

    Returns:
        The exit code of the conversion: 1 if it would be refused.
    """
    conflicts = set(existing.conflicts())
    verb_of_conflict = {"overwrite": "replace", "error": "refuse", "ignore": "leave alone"}[
        writer.mode or "error"
    ]
    for partition, state in existing.states.items():
        verb = verb_of_conflict if partition in conflicts else "write" if state == "new" else "replace"
        remark = state if state == "new" else f"there already, {state}"
        print(f"would {verb} {writer.describe(partition)} ({remark})")
    return 1 if conflicts and writer.mode == "error" else 0


def print_report(report: WriteReport, seconds: float) -> None:
    """Print what was written, and which parts of the input were not."""
    from mm_assets.formats.reports import (
        empty_shards_lines,
        left_out_lines,
        left_out_of,
        untaken_in,
        untaken_lines,
    )

    print(
        f"{report.path}: {counted(len(report.partitions), 'partition')}, "
        f"{counted(report.samples, 'sample')}, {counted(report.images, 'image')}, "
        f"{counted(report.texts, 'text')}, {report.nbytes / 1e6:.1f} MB, {seconds:.1f} s"
    )
    for line in summary(report.losses):
        print(f"  {line}")
    of_nothing = [part.source_files[0] for part in report.partitions if part.is_of_nothing]
    left_out = [name for part in report.partitions for name in left_out_of(part.notes)]
    for line in (
        *empty_shards_lines(of_nothing, len(report.partitions)),
        *untaken_lines(map(untaken_in, report.partitions), len(report.partitions)),
        *left_out_lines(len(left_out), left_out),
    ):
        print(f"  {line}")
    kinds: dict[str, int] = {}
    for error in report.errors:
        kinds[error.outcome] = kinds.get(error.outcome, 0) + 1
    for outcome, count in kinds.items():
        print(f"  items with errors, {outcome}: {count}")
    if report.dropped_columns:
        print(f"  columns left out: {', '.join(report.dropped_columns)}")
    for part in report.partitions:
        for file, notes in part.notes.items():
            for name, description in _NOTES.items():
                if found := notes.get(name):
                    listed = ", ".join(found[:3]) + ("…" if found[3:] else "")
                    print(f"  {file}: {len(found)} {description}: {listed}")


def convert_arguments(commands: Any) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser("convert", help="convert a dataset to another format (or filter it)")
    parser.add_argument(
        "src",
        type=location,
        help=f"file, folder, glob, brace list or URL of {TITLES} data",
    )
    parser.add_argument("dst", type=location, help="folder for the output")
    to = parser.add_argument(
        "--to",
        required=True,
        type=_format,
        metavar="FORMAT",
        help=f"format of the output: {', '.join(FORMATS)}",
    )
    to.completions = FORMATS  # type: ignore[attr-defined]  # for a shell
    parser.add_argument(
        "--layout",
        choices=tuple(layout.name for layout in LAYOUTS),
        help="of jsonl: documents as others write them, instead of ours",
    )
    parser.add_argument(
        "--fields", type=names, help="passthrough columns to keep, comma-separated (default: all)"
    )
    add_layout_flags(parser)
    add_filter_flags(parser)
    policy = (
        "of a sample with an error: its file fails (error), it is kept (warn), "
        "or left out and listed, the item or all of it"
    )
    parser.add_argument(
        "--on-materialize-error",
        default="error",
        choices=("error", "warn", "drop_row", "drop_sample"),
        help=policy,
    )
    parser.add_argument(
        "--max-loss",
        type=share,
        help="share of a file's members and items that may be lost (MM_MAX_LOSS, else 0.5)",
    )
    mode = (
        "of partitions that are there already, from another source: "
        "replace them, write nothing (default), or leave them alone"
    )
    parser.add_argument("--mode", default="error", choices=("overwrite", "error", "ignore"), help=mode)
    parser.add_argument(
        "--dry-run", action="store_true", help="list what would be written, and write nothing"
    )
    parser.add_argument(
        "--max-batch-bytes", type=parsed(parse_bytes), help="bytes of a batch in memory, e.g. 64MiB"
    )
    parser.add_argument(
        "--workers",
        type=number_of("a number of processes", 0, 9),
        default=0,
        help="worker processes (default: one per core)",
    )
    parser.set_defaults(run=run_convert)


def _format(word: str) -> str:
    if word in FORMATS:
        return word
    nearest = nearest_format(word)
    hint = "" if nearest is None else f"; the nearest is {nearest}"
    raise argparse.ArgumentTypeError(f"{word!r:.100}: no such format, only {', '.join(FORMATS)}{hint}")


def run_convert(options: argparse.Namespace) -> int:
    """Convert every partition in worker processes; a bad one fails alone and sets the exit code."""
    from mm_assets.storage.files import no_empty_folders

    is_one_file = format_of(options.to).has(options.dst)
    folder = os.path.dirname(options.dst) if is_one_file else options.dst
    with no_empty_folders(folder):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from mm_assets.accounting.ledger import lists_folder
    from mm_assets.dataset import DatasetConversion
    from mm_assets.storage.errors import located

    started = time.monotonic()
    with located(options.src):
        reader, writer, steps = _parts(options)
        conversion = DatasetConversion(reader, writer, steps)
    if options.dry_run:
        return print_plan(conversion.existing, conversion.writer)
    converted = conversion.run(options.to, options.workers, options.max_loss, may_fork=True)
    report = converted.report
    print_report(report, time.monotonic() - started)
    if converted.skipped:
        alone = counted(len(converted.skipped), "partition")
        print(f"  left alone, as they are from another source: {alone}")
    if report.losses:
        print(f"  lost items are listed in {lists_folder(writer)}")
    for message, count in Counter(converted.failures).items():
        fail(f"{' '.join(message.split())}{f' ({count} partitions)' if count > 1 else ''}")
    return 1 if converted.failures else 0


def _parts(options: argparse.Namespace) -> tuple[Any, Any, list[Any]]:
    from mm_assets.dataset import arguments_of, refuse_nested
    from mm_assets.filters.readable import ReadableImages
    from mm_assets.formats.raw_shards import location_of
    from mm_assets.formats.registry import detect_format, reader_for, writer_for

    source = location_of(options.src)
    refuse_nested(source, options.dst)
    kind = detect_format(source)
    refuse_inapplicable_flags(options, kind, source)
    arguments = {**arguments_of(kind, [source]), "fields": options.fields, "materialize": True}
    if options.max_batch_bytes:
        arguments["max_batch_bytes"] = options.max_batch_bytes
    if layout := layout_of(options, kind, source):
        # A first pass over the rows of a sound file would only cost time.
        is_sound = format_of(kind).quarantine_rereads and is_ours(kind, source)
        quarantine_errors = options.on_materialize_error != "error" and not is_sound
        arguments |= {"quarantine_errors": quarantine_errors, **layout}
    reader = reader_for(kind, source, **arguments)
    if options.layout is not None and options.to != "jsonl":
        raise ValueError(f"--layout is for --to jsonl, not for {options.to}")
    writer = writer_for(
        options.to,
        options.dst,
        **({} if options.layout is None else {"layout": options.layout}),
        on_materialize_error=options.on_materialize_error,
        roots=arguments["roots"],
        mode=options.mode,
    )
    chain = chain_asked_for(options)
    return reader, writer, [ReadableImages(), *([chain] if chain is not None else [])]
