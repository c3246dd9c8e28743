"""Command ``mm-assets convert SRC DST --to FORMAT``.

* `run_convert` converts each partition in a worker; `print_plan` and `print_report` tell what would be, and
  what was, written.
* Losses: a summary by kind, and lists of all lost items beside the output (`publish`).
* `resolve_duplicates`: sample ids are unique in the output. The first partition keeps an id, others
  quarantine theirs. The graph resolves the same among all shards that ever existed
  (`mm_assets.accounting.sample_ids`), from surveys and published outputs, and a published shard comes before
  others. A command has neither: it reads the ids of its inputs, and their order decides.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from mm_assets.cli.arguments import (
    Progress,
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
from mm_assets.formats.names import FORMATS, TITLES, format_of, nearest_format, output_of
from mm_assets.formats.partitions import parse_bytes
from mm_assets.model.errors import counted
from mm_assets.settings import Settings
from mm_assets.terminal import fail

if TYPE_CHECKING:
    import pyarrow as pa

    from mm_assets.formats.partitions import Partition
    from mm_assets.formats.registry import Conversion
    from mm_assets.formats.reports import WriteReport
    from mm_assets.formats.writer import ExistingPartitions, InterleavedWriter, PartitionReport
    from mm_assets.model.losses import Loss
    from mm_assets.model.samples import InterleavedBatch, StepResult
    from mm_assets.pool.workers import WorkerPool
    from mm_assets.storage.stamps import Note


def folder(writer: InterleavedWriter) -> str:
    """Return the folder of the lists: beside the data, where readers ignore it."""
    from mm_assets.storage.files import join
    from mm_assets.storage.listing import LEDGER_BESIDE

    any_output = writer.uri_of("any")  # all lie in one folder
    return join(os.path.dirname(any_output) or ".", LEDGER_BESIDE)


def publish(writer: InterleavedWriter, reports: Sequence[PartitionReport]) -> None:
    """Publish a list of lost items per partition, in the columns of the ledger.

    For a partition without losses the list of an earlier conversion is removed.
    """
    from mm_assets.accounting.ledger import items_table, publish_losses
    from mm_assets.formats.names import partition_filename
    from mm_assets.storage.files import join
    from mm_assets.storage.stamps import existing_files

    reports_of: dict[str, PartitionReport] = {}
    for report in reports:
        output = os.path.basename(writer.uri_of(report.partition)).removesuffix(writer.suffix)
        name = output if writer.is_single_file else partition_filename(report.partition)
        reports_of[join(folder(writer), f"{name}.parquet")] = report
    earlier = existing_files(uri for uri, report in reports_of.items() if not report.losses)
    for uri, report in reports_of.items():
        if report.losses or uri in earlier:
            publish_losses(uri, items_table("convert", report.partition, report.losses))


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


@dataclass(frozen=True)
class QuarantineRepeatedIds:
    """Step that takes out samples whose id another partition keeps (``owners``: sample id -> partition)."""

    owners: Mapping[str, str]

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from mm_assets.model.nested_types import take_rows
        from mm_assets.model.samples import StepResult

        table = batch.data
        is_taken = pc.is_in(table.column("sample_id"), pa.array(list(self.owners), pa.string())).to_numpy()
        if not is_taken.any():
            return StepResult(batch)
        removed = take_rows(table, np.flatnonzero(is_taken))
        return StepResult(
            batch.with_data(take_rows(table, np.flatnonzero(~is_taken))), self._losses(removed), removed
        )

    def _losses(self, removed: pa.Table) -> tuple[Loss, ...]:
        from mm_assets.model.errors import DUPLICATE_ID
        from mm_assets.model.losses import Loss

        seen: set[str] = set()
        losses = []
        for row in removed.select(["sample_id", "position", "modality"]).to_pylist():
            sample_id = row["sample_id"]
            is_cause = sample_id not in seen  # the sample's first row, its metadata
            seen.add(sample_id)
            reason = f"sample id {sample_id!r:.200} is already in partition {self.owners[sample_id]!r}"
            losses.append(
                Loss(**row, outcome="quarantined", kind=DUPLICATE_ID, reason=reason, is_cause=is_cause)
            )
        return tuple(losses)


def resolve_duplicates(
    conversions: Sequence[Conversion], pool: WorkerPool
) -> tuple[list[Conversion], list[str]]:
    """Resolve sample ids that several partitions share.

    The first partition with an id owns it. Under the policy ``error`` a later partition with that id is left
    out; under the others it quarantines those samples.

    Returns:
        The conversions that together make an output without duplicate ids, in order, and a message for each
        one left out.
    """
    from mm_assets.pool.workers import WorkerFailure

    if len(conversions) < 2:
        return list(conversions), []
    answers = pool.map(sample_ids, conversions)
    # A partition that cannot be read fails when it is converted.
    found = {
        conversion.partition.name: ids for conversion, ids in answers if not isinstance(ids, WorkerFailure)
    }
    repeated = _repeated(found)
    owners: dict[str, Partition] = {}
    resolved: list[Conversion] = []
    messages: list[str] = []
    for conversion in conversions:
        partition = conversion.partition
        shared = repeated.get(partition.name, [])
        claimed_ids = {sample_id: owners[sample_id] for sample_id in shared if sample_id in owners}
        if claimed_ids and conversion.writer.on_materialize_error == "error":
            messages.append(_duplicate_message(partition, claimed_ids))
            continue
        owners.update({sample_id: partition for sample_id in shared if sample_id not in claimed_ids})
        if claimed_ids:
            step = QuarantineRepeatedIds({sample_id: owner.name for sample_id, owner in claimed_ids.items()})
            conversion = replace(conversion, steps=(step, *conversion.steps))
        resolved.append(conversion)
    return resolved, messages


def sample_ids(conversion: Conversion) -> pa.Array:
    """Return the distinct ids of a partition, without reading any image.

    Samples that the policy will drop because an item has an error do not own their id.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the conversion itself warns again
        _, tables = conversion.reader.project(conversion.partition, ["sample_id", "materialize_error"])
        for table in tables:
            column = table.column("sample_id")
            if conversion.writer.on_materialize_error == "drop_sample":
                faulty = column.filter(pc.is_valid(table.column("materialize_error")))
                column = column.filter(pc.invert(pc.is_in(column, faulty)))
            ids += column.chunks
    return pc.unique(pa.chunked_array(ids, pa.string()))


def _repeated(found: Mapping[str, pa.Array]) -> dict[str, list[str]]:
    """Return for each partition the ids that another one has too."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counts = pc.value_counts(pa.chunked_array(list(found.values()), pa.string()))
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if not len(repeated):
        return {}
    return {name: ids.filter(pc.is_in(ids, repeated)).to_pylist() for name, ids in found.items()}


def _duplicate_message(partition: Partition, claimed_ids: Mapping[str, Partition]) -> str:
    sample_id, owner = next(iter(claimed_ids.items()))
    more = f" (and {len(claimed_ids) - 1} more ids that others have)" if len(claimed_ids) > 1 else ""
    hint = (
        ""
        if len(claimed_ids) == 1
        else "; ids that start anew in each tar are told apart by --sample-id-prefix shard"
    )
    return f"{_place(partition)}: sample id {sample_id!r:.200} is already in {_place(owner)}{more}{hint}"


def _place(partition: Partition) -> str:
    files = ", ".join(partition.files[:3])
    return f"{files}, partition {partition.name!r}" if partition.fragments else files


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
    parser.add_argument(
        "--to",
        required=True,
        type=_format,
        metavar="FORMAT",
        help=f"format of the output: {', '.join(FORMATS)}",
    )
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
    from mm_assets.formats.registry import other_formats, plan_conversions
    from mm_assets.formats.reports import PartitionsRefused
    from mm_assets.formats.writer import ExistingPartitions, PartitionReport, WriteReport
    from mm_assets.model.errors import warn_user
    from mm_assets.pool.workers import WorkerPool, available_cores
    from mm_assets.storage.errors import error_line, located, readable_store_errors
    from mm_assets.storage.files import refuse_unwritable, sweep, sweep_output

    started = time.monotonic()
    with located(options.src):
        reader, writer, steps = _parts(options)
        refuse_unwritable(os.path.dirname(folder(writer)))
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
        sweep(folder(writer))
    reports: list[PartitionReport] = []
    processes = min(options.workers or available_cores(), max(len(conversions), 1))
    settings = Settings.load()
    max_loss = settings.max_loss if options.max_loss is None else options.max_loss
    with (
        TemporaryDirectory() as lists,
        WorkerPool(processes, may_fork=True, time_limit=settings.shard_timeout) as pool,
    ):
        conversions = fitted_conversions(conversions, lists)
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
    publish(writer, reports)
    report = WriteReport(options.dst, tuple(reports))
    print_report(report, time.monotonic() - started)
    if skipped:
        print(f"  left alone, as they are from another source: {counted(len(skipped), 'partition')}")
    if report.losses:
        print(f"  lost items are listed in {folder(writer)}")
    for message, count in Counter(failures).items():
        fail(f"{' '.join(message.split())}{f' ({count} partitions)' if count > 1 else ''}")
    return 1 if failures else 0


def fitted_conversions(conversions: list[Any], folder: str) -> list[Any]:
    """Return conversions whose filters fit the columns of all inputs, see `Filter.fitted`.

    Raises:
        ValueError: in one line, a filter does not.
    """
    from mm_assets.filters.chain import FilterChain
    from mm_assets.filters.columns import KEYS
    from mm_assets.formats.registry import readable_schema

    chains = [step for step in conversions[0].steps if isinstance(step, FilterChain)] if conversions else []
    for chain in chains:
        chain.refuse_missing_figures()
    if not any(chain.columns for chain in chains):
        return conversions
    schemas = {}
    if any(chain.columns.difference(KEYS) for chain in chains):  # reading them takes a while
        found = {each.place: readable_schema(each.reader, each.partition) for each in conversions}
        schemas = {place: schema for place, schema in found.items() if schema is not None}
    steps = tuple(
        step.fitted(schemas, (), folder) if isinstance(step, FilterChain) else step
        for step in conversions[0].steps
    )
    return [replace(each, steps=steps) for each in conversions]


def _named(conversion: Any, message: str) -> str:
    """Return the message with the partition's first file, unless it names that or the output already."""
    place = conversion.place
    return message if place in message or conversion.writer.path in message else f"{place}: {message}"


def _parts(options: argparse.Namespace) -> tuple[Any, Any, list[Any]]:
    from mm_assets.filters.readable import ReadableImages
    from mm_assets.formats.partitions import root_of_locations
    from mm_assets.formats.raw_shards import location_of
    from mm_assets.formats.registry import (
        DEFAULT_BATCH_BYTES,
        SUFFIXES,
        detect_format,
        reader_for,
        writer_for,
    )
    from mm_assets.storage.files import is_remote

    source = location_of(options.src)
    _refuse_nested(source, options.dst)
    kind = detect_format(source)
    refuse_inapplicable_flags(options, kind, source)
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
    if layout := layout_of(options, kind, source):
        # A first pass over the rows of a sound file would only cost time.
        is_sound = format_of(kind).quarantine_rereads and is_ours(kind, source)
        quarantine_errors = options.on_materialize_error != "error" and not is_sound
        arguments |= {
            "relative_to": None if is_remote(source) else root,
            "quarantine_errors": quarantine_errors,
            **layout,
        }
    reader = reader_for(kind, source, **arguments)
    if options.layout is not None and options.to != "jsonl":
        raise ValueError(f"--layout is for --to jsonl, not for {options.to}")
    writer = writer_for(
        options.to,
        options.dst,
        **({} if options.layout is None else {"layout": options.layout}),
        on_materialize_error=options.on_materialize_error,
        roots=roots,
        mode=options.mode,
    )
    chain = chain_asked_for(options)
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
    from mm_assets.model.errors import ShardError

    def check(report: PartitionReport) -> None:
        if (refusal := LossShare.of_report(report).refusal(max_loss)) is not None:
            raise ShardError(f"{', '.join(report.source_files[:3])}: {refusal}")
        if job.note is not None:
            job.note.write()

    return job.conversion.run(check)


def _refuse_nested(source: str, target: str) -> None:
    """Refuse an output inside its own input: it would be read as input the next time, or overwrite it."""
    from mm_assets.storage.files import is_remote, local_path

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
