"""Command ``mm-assets convert SRC DST --to FORMAT``."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mm_assets.cli import filter_flags, losses, raw_layout
from mm_assets.cli.arguments import byte_size, location, names, process_count, share
from mm_assets.cli.conversion_report import print_plan, print_report
from mm_assets.cli.progress import Progress
from mm_assets.formats.format_table import FORMATS, TITLES, format_of, nearest_format, output_of
from mm_assets.interleaved.counted import counted
from mm_assets.terminal import fail

if TYPE_CHECKING:  # commands start faster without pyarrow
    from mm_assets.formats.conversion import Conversion
    from mm_assets.formats.origins import Note
    from mm_assets.formats.writer import PartitionReport


def add_to(commands: Any) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser("convert", help="convert a dataset to another format (or filter it)")
    parser.add_argument(
        "src",
        type=location,
        help=f"file, folder, glob, brace list or URL of {TITLES} data",
    )
    parser.add_argument("dst", type=location, help="folder for the output")
    parser.add_argument(
        "--to",
        required=True,
        type=_format,
        metavar="FORMAT",
        help=f"format of the output: {', '.join(FORMATS)}",
    )
    parser.add_argument(
        "--fields", type=names, help="passthrough columns to keep, comma-separated (default: all)"
    )
    raw_layout.add_flags(parser)
    filter_flags.add_flags(parser)
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
    parser.add_argument("--max-batch-bytes", type=byte_size, help="bytes of a batch in memory, e.g. 64MiB")
    parser.add_argument(
        "--workers", type=process_count, default=0, help="worker processes (default: one per core)"
    )
    parser.set_defaults(run=run)


def _format(word: str) -> str:
    if word in FORMATS:
        return word
    nearest = nearest_format(word)
    hint = "" if nearest is None else f"; the nearest is {nearest}"
    raise argparse.ArgumentTypeError(f"{word!r:.100}: no such format, only {', '.join(FORMATS)}{hint}")


def run(options: argparse.Namespace) -> int:
    """Convert every partition in worker processes; a bad one fails alone and sets the exit code."""
    from mm_assets.formats.output_folder import no_empty_folders

    is_one_file = format_of(options.to).has(options.dst)
    folder = os.path.dirname(options.dst) if is_one_file else options.dst
    with no_empty_folders(folder):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    from mm_assets.available_cores import available_cores
    from mm_assets.cli.unique_ids import resolve_duplicates
    from mm_assets.formats.conversion import plan_conversions
    from mm_assets.formats.error_lines import error_line, readable_store_errors
    from mm_assets.formats.error_places import located
    from mm_assets.formats.existing_partitions import ExistingPartitions
    from mm_assets.formats.output_folder import refuse_unwritable
    from mm_assets.formats.registry import other_formats
    from mm_assets.formats.reports import PartitionsRefused
    from mm_assets.formats.storage import sweep, sweep_output
    from mm_assets.formats.writer import PartitionReport, WriteReport
    from mm_assets.interleaved.notices import warn_user
    from mm_assets.settings import Settings
    from mm_assets.workers import WorkerPool

    started = time.monotonic()
    with located(options.src):
        reader, writer, steps = _parts(options)
        refuse_unwritable(os.path.dirname(losses.folder(writer)))
        conversions = plan_conversions(reader, writer, steps)
    writer = conversions[0].writer if conversions else writer
    _refuse_overwriting(conversions)
    with readable_store_errors(), located(options.dst):
        existing = ExistingPartitions(
            writer, {conversion.partition.name: conversion.partition.files for conversion in conversions}
        )
        if options.dry_run:
            return print_plan(existing, writer)
        skipped = existing.skipped()
        if others := other_formats(options.dst, options.to):
            warn_user(
                f"{options.dst}: holds {' and '.join(others)}, too: "
                "who reads the folder has to name the files of one"
            )
        conversions = [conversion for conversion in conversions if conversion.partition.name not in skipped]
        sweep_output(options.dst)
        sweep(losses.folder(writer))
    reports: list[PartitionReport] = []
    processes = min(options.workers or available_cores(), max(len(conversions), 1))
    settings = Settings.load()
    max_loss = settings.max_loss if options.max_loss is None else options.max_loss
    with WorkerPool(processes, may_fork=True, time_limit=settings.shard_timeout) as pool:
        conversions, failures = resolve_duplicates(conversions, pool)
        with Progress(len(conversions)) as progress:
            jobs = [
                _Job(conversion, existing.note_of(conversion.partition.name)) for conversion in conversions
            ]
            for (conversion, _), result in pool.map(partial(_convert, max_loss=max_loss), jobs):
                if isinstance(result, PartitionReport):
                    reports.append(result)
                    progress.add(result.samples, result.nbytes)
                else:
                    failures.append(_named(conversion, result.message))
                    progress.add(0, 0)
    reports.sort(key=lambda report: report.partition)
    try:
        with readable_store_errors(), located(options.dst):
            writer.finish(reports)
    except PartitionsRefused as error:  # the other partitions are reported all the same
        failures += error.reasons
        reports = [report for report in reports if report.partition not in error.complaints]
    except (OSError, ValueError) as error:  # none of them has landed
        failures.append(error_line(error))
        reports = []
    with readable_store_errors(), located(options.dst):
        existing.note_published([report.partition for report in reports])
    losses.publish(writer, reports)
    report = WriteReport(options.dst, tuple(reports))
    print_report(report, time.monotonic() - started)
    if skipped:
        print(f"  left alone, as they are from another source: {counted(len(skipped), 'partition')}")
    if report.losses:
        print(f"  lost items are listed in {losses.folder(writer)}")
    for message, count in Counter(failures).items():
        fail(f"{' '.join(message.split())}{f' ({count} partitions)' if count > 1 else ''}")
    return 1 if failures else 0


def _named(conversion: Any, message: str) -> str:
    """Return the message with the partition's first file, unless it names that or the output already."""
    place = conversion.place
    return message if place in message or conversion.writer.path in message else f"{place}: {message}"


def _parts(options: argparse.Namespace) -> tuple[Any, Any, list[Any]]:
    from mm_assets.filters.readable import ReadableImages
    from mm_assets.formats.conversion import DEFAULT_BATCH_BYTES
    from mm_assets.formats.made_shards import location_of
    from mm_assets.formats.partitions import root_of_locations
    from mm_assets.formats.registry import SUFFIXES, detect_format, reader_for, writer_for
    from mm_assets.formats.storage import is_remote

    source = location_of(options.src)
    _refuse_nested(source, options.dst)
    kind = detect_format(source)
    raw_layout.refuse_inapplicable_flags(options, kind, source)
    root = root_of_locations([source], SUFFIXES)
    roots = [
        *_raw_roots(),
        root,
    ]  # relative locators are below the first: the raw root where one is configured
    arguments: dict[str, Any] = {
        "fields": options.fields,
        "max_batch_bytes": options.max_batch_bytes or DEFAULT_BATCH_BYTES,
        "roots": roots,
        "materialize": True,
    }
    if layout := raw_layout.layout_of(options, kind, source):
        # A first pass over the rows of a sound file would only cost time.
        is_sound = format_of(kind).quarantine_rereads and raw_layout.is_ours(kind, source)
        quarantine_errors = options.on_materialize_error != "error" and not is_sound
        arguments |= {
            "relative_to": None if is_remote(source) else root,
            "quarantine_errors": quarantine_errors,
            **layout,
        }
    reader = reader_for(kind, source, **arguments)
    writer = writer_for(
        options.to,
        options.dst,
        on_materialize_error=options.on_materialize_error,
        roots=roots,
        mode=options.mode,
    )
    chain = filter_flags.chain_asked_for(options)
    return reader, writer, [ReadableImages(), *([chain] if chain is not None else [])]


class _Job(NamedTuple):
    """A conversion for a worker, and the note of its source, if that is to be written first."""

    conversion: Conversion
    note: Note | None

    @property
    def place(self) -> str:
        """What its warnings are about."""
        return self.conversion.place


def _convert(job: _Job, max_loss: float) -> PartitionReport:
    """Convert one partition in a worker; it is not published if it would lose more than ``max_loss``."""
    from mm_assets.accounting.loss_share import LossShare
    from mm_assets.interleaved.errors import ShardError

    def check(report: PartitionReport) -> None:
        if (refusal := LossShare.of_report(report).refusal(max_loss)) is not None:
            raise ShardError(f"{', '.join(report.source_files[:3])}: {refusal}")
        if job.note is not None:
            job.note.write()

    return job.conversion.run(check)


def _refuse_nested(source: str, target: str) -> None:
    """Refuse an output inside its own input: it would be read as input the next time, or overwrite it."""
    from mm_assets.formats.storage import is_remote, local_path

    if is_remote(source) != is_remote(target):
        return
    if is_remote(source):
        inside, outer = target.rstrip("/"), source.rstrip("/")
    else:
        inside, outer = os.path.realpath(local_path(target)), os.path.realpath(local_path(source))
    if inside == outer or inside.startswith(outer.rstrip("/") + "/"):
        raise ValueError(f"{target}: the output cannot be inside the input {source}")


def _refuse_overwriting(conversions: list[Any]) -> None:
    files = {file for conversion in conversions for file in conversion.partition.files}
    inputs = {os.path.realpath(output_of(file)) for file in files}
    for conversion in conversions:
        output = conversion.writer.uri_of(conversion.partition.name)
        if os.path.realpath(output) in inputs:
            raise ValueError(f"{output}: the output would overwrite the input; name another folder")


def _raw_roots() -> list[str]:
    """Return the folders of the configured raw shards: locators of curated data may refer to them."""
    from mm_assets.formats.raw_shards import RawLocations
    from mm_assets.settings_file import given_settings

    return RawLocations(given_settings().get("MM_RAW_SHARDS", "")).roots()
