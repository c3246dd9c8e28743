"""Commands on any dataset: ``convert SRC DST --to FORMAT``, ``inspect PATH``, ``verify A B``.

* `run_convert` converts each partition in a worker, by `mm_assets.dataset`; `print_plan` and `print_report`
  tell what would be, and what was, written.
* `run_inspect` tells what a dataset holds, without its image bytes, and what `convert` would refuse.
* `run_verify` checks that datasets hold the same items.
* `summary`: the losses by kind.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from mm_assets.cli.arguments import (
    add_filter_flags,
    add_layout_flags,
    add_policy_flag,
    chain_asked_for,
    layout_of,
    location,
    names,
    number_of,
    parsed,
    reading_of,
    refuse_inapplicable_flags,
    share,
)
from mm_assets.formats.document_layouts import LAYOUTS
from mm_assets.formats.names import FORMATS, TITLES, format_of, nearest_format
from mm_assets.formats.partitions import parse_bytes
from mm_assets.model.errors import counted
from mm_assets.settings import Settings
from mm_assets.storage import import_client
from mm_assets.terminal import fail, fail_each, printable

if TYPE_CHECKING:
    import pyarrow as pa

    from mm_assets.formats.partitions import Partition
    from mm_assets.formats.reports import ContentColumns, WriteReport
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
    print(
        f"{report.path}: {counted(len(report.partitions), 'partition')}, "
        f"{counted(report.samples, 'sample')}, {counted(report.images, 'image')}, "
        f"{counted(report.texts, 'text')}, {report.nbytes / 1e6:.1f} MB, {seconds:.1f} s"
    )
    for line in lost_lines(report):
        print(f"  {line}")


def lost_lines(report: WriteReport) -> list[str]:
    """Return lines on the parts of the input that were not written as they are."""
    from mm_assets.formats.reports import (
        empty_shards_lines,
        left_out_lines,
        left_out_of,
        untaken_in,
        untaken_lines,
    )

    of_nothing = [part.source_files[0] for part in report.partitions if part.is_of_nothing]
    left_out = [name for part in report.partitions for name in left_out_of(part.notes)]
    lines = [
        *summary(report.losses),
        *empty_shards_lines(of_nothing, len(report.partitions)),
        *untaken_lines(map(untaken_in, report.partitions), len(report.partitions)),
        *left_out_lines(len(left_out), left_out),
    ]
    kinds = Counter(error.outcome for error in report.errors)
    lines += [f"items with errors, {outcome}: {count}" for outcome, count in kinds.items()]
    if report.dropped_columns:
        lines.append(f"columns left out: {', '.join(report.dropped_columns)}")
    for part in report.partitions:
        for file, notes in part.notes.items():
            for name, description in _NOTES.items():
                if found := notes.get(name):
                    listed = ", ".join(found[:3]) + ("…" if found[3:] else "")
                    lines.append(f"{file}: {len(found)} {description}: {listed}")
    return lines


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
    add_policy_flag(parser)
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
    with no_empty_folders(folder), _forks_beside_clients(options.src, options.dst):
        return _run(options)


@contextmanager
def _forks_beside_clients(*locations: str) -> Iterator[None]:
    """Have workers forked from a process without threads: clients of stores will start some in this one."""
    from mm_assets.storage.files import is_remote

    if not any(map(is_remote, locations)):
        yield
        return
    import mm_assets.dataset  # noqa: F401
    from mm_assets.pool.workers import fork_server

    import_client(locations)
    with fork_server():
        yield


def _run(options: argparse.Namespace) -> int:
    from mm_assets.accounting import lost_items_folder
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
        print(f"  lost items are listed in {lost_items_folder(writer)}")
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
    arguments |= reading_of(options, kind, source)
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


_COLUMNS = ["sample_id", "position", "modality", "content_type", "text_content", "materialize_error"]
_SAMPLES, _ERRORS = "samples", "errors"  # beside the modalities
_MODALITIES = ("metadata", "text", "image")
_READS_THE_REST = "; convert --on-materialize-error drop_sample reads the rest"
_NAMED = 3  # partitions that would be refused


def inspect_arguments(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "inspect", help="show format, counts, columns and the first sample of a dataset"
    )
    parser.add_argument("path", type=location, help=f"file, folder, glob or URL of {TITLES} data")
    add_layout_flags(parser)
    parser.set_defaults(run=run_inspect)


def run_inspect(options: argparse.Namespace) -> int:
    """Print what a dataset holds; image bytes are not read.

    Partitions that cannot be read are named at the end.
    """
    from mm_assets.formats.raw_shards import location_of
    from mm_assets.formats.registry import detect_format, reader_for
    from mm_assets.formats.tar import TarDamage
    from mm_assets.formats.webdataset import VIRTUAL_SCHEMES, SampleError
    from mm_assets.model.json_codec import is_json
    from mm_assets.model.schema import unify_schemas
    from mm_assets.storage.errors import error_line, located

    source = location_of(options.path)
    with located(source):
        kind = detect_format(source)
        refuse_inapplicable_flags(options, kind, source)
        reader = reader_for(kind, source, **layout_of(options, kind, source))
        partitions = reader.partitions()
    counts: Counter[str] = Counter()
    schemas = []
    first: list[dict[str, Any]] = []
    failures: list[str] = []
    advice = _Advice()
    for partition in partitions:
        found: Counter[str] = Counter()
        notes: dict[str, Any] = {}
        try:
            schema, tables = reader.project(partition, _COLUMNS, notes)
            schemas.append(schema)
            for table in tables:
                found += _counts(table)
                first = first or _first_sample(table)
            advice.add(partition, schema, found, notes)
        except (OSError, ValueError) as error:
            # `inspect` reads as the policy `error` does: what is wrong is to be seen, and named.
            is_of_sample = isinstance(error, SampleError | TarDamage)
            failures.append(error_line(error) + (_READS_THE_REST if is_of_sample else ""))
        counts += found
    if failures and not schemas:
        raise ValueError("; ".join(failures))
    unread = f", of which {len(failures)} cannot be read to the end" if failures else ""
    print(
        f"{options.path if source.startswith(VIRTUAL_SCHEMES) else source}: "
        f"{kind}, {counted(len(partitions), 'partition')}{unread}, "
        f"{counted(counts[_SAMPLES], 'sample')}, {counted(sum(counts[name] for name in _MODALITIES), 'row')}"
    )
    print(
        f"  {counts['metadata']} metadata, {counts['text']} text, {counts['image']} image rows; "
        f"{counts[_ERRORS]} with an error"
    )
    for line in advice.documents:
        print(f"  documents: {printable(line)}")
    print("columns:")
    for field in unify_schemas(schemas) if schemas else []:
        print(f"  {field.name}: {'JSON' if is_json(field) else field.type}")
    if first:
        print(f"first sample: {first[0]['sample_id']}")
        for row in first:
            shown = row["materialize_error"] or row["text_content"] or row["content_type"] or ""
            print(f"  [{row['position']}] {row['modality']}: {shown[:100]}")
    for line in advice.lines():
        print(line)
    return fail_each(failures) or int(advice.loses_all)


def _counts(table: pa.Table) -> Counter[str]:
    """Count samples, errors, and rows by modality."""
    found = Counter(
        {_SAMPLES: len(table.column("sample_id").unique())}
        | {entry["values"]: entry["counts"] for entry in table.column("modality").value_counts().to_pylist()}
    )
    found[_ERRORS] = table.num_rows - table.column("materialize_error").null_count
    return found


def _first_sample(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.slice(0, 200).to_pylist()
    return [row for row in rows if row["sample_id"] == rows[0]["sample_id"]]


class _Advice:
    """What `convert` would say: why it would refuse a partition, and which content is not taken."""

    def __init__(self) -> None:
        self._max_loss = Settings.load().max_loss
        self.refusals: list[str] = []
        self.loses_all = False  # of some partition `convert` would refuse, 100 % would be lost
        self._untaken: list[ContentColumns] = []
        self._errors = 0
        self._left_out: list[str] = []
        self.documents: dict[str, None] = {}  # layouts of documents of others

    def add(
        self, partition: Partition, schema: pa.Schema, found: Counter[str], notes: dict[str, Any]
    ) -> None:
        """Take a partition into account that was read to the end."""
        from mm_assets.accounting.loss_share import LossShare
        from mm_assets.formats.document_layouts import INTERLEAVED
        from mm_assets.formats.reports import DOCUMENTS, PartitionReport, left_out_of, untaken_in

        report = PartitionReport(
            partition=partition.name,
            uri=None,
            rows=sum(found[name] for name in _MODALITIES),
            samples=found[_SAMPLES],
            images=found["image"],
            texts=found["text"],
            nbytes=0,
            image_bytes=0,
            schema=schema,
            digest="",
            notes=notes,
        )
        self._untaken.append(untaken_in(report))
        self._errors += found[_ERRORS]
        self._left_out += left_out_of(notes)
        self.documents |= dict.fromkeys(
            each.get(DOCUMENTS, INTERLEAVED) for each in notes.values() if each.get("of_others")
        )
        loss = LossShare.of_report(report)
        refusal = loss.refusal(self._max_loss)
        self.loses_all |= refusal is not None and round(loss.share, 2) == 1
        self.refusals += [] if refusal is None else [f"{partition.files[0]}: {refusal}"]

    def lines(self) -> list[str]:
        """Return a line for each of the first refusals, each modality not taken, and members left out."""
        from mm_assets.formats.reports import left_out_lines, untaken_lines

        more = len(self.refusals) - _NAMED
        ways = "unless --on-materialize-error is warn, drop_row or drop_sample"
        return [
            *([f"convert would refuse the rows with an error, {ways}"] if self._errors else []),
            *(f"convert would refuse {refusal}" for refusal in self.refusals[:_NAMED]),
            *([f"and {more} more"] if more > 0 else []),
            *untaken_lines(self._untaken, len(self._untaken)),
            *left_out_lines(len(self._left_out), self._left_out),
        ]


def verify_arguments(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "verify", help="prove that datasets hold the same items, or name what differs"
    )
    for name in ("a", "b"):
        kinds = f"file, folder, glob or URL of {TITLES} data"
        parser.add_argument(name, metavar=name.upper(), type=location, help=kinds)
    # Without a default argparse counts C as required, and says so where B is missing.
    parser.add_argument("more", metavar="C", nargs="*", default=[], type=location, help="further datasets")
    add_layout_flags(parser)
    parser.set_defaults(run=run_verify)


def run_verify(options: argparse.Namespace) -> int:
    """Print what each dataset holds, and ``equal``.

    Otherwise name on stderr the differences between the first dataset and each other one.
    """
    from mm_assets.accounting.canonical import canonical_sources
    from mm_assets.accounting.comparison import Dataset, compare
    from mm_assets.formats.raw_shards import location_of
    from mm_assets.storage.errors import located

    datasets: dict[str, Dataset] = {}
    for number, source in enumerate([options.a, options.b, *options.more]):
        name = chr(ord("A") + number)
        with located(source):
            dataset = datasets[name] = Dataset(
                canonical_sources(location_of(source), partial(layout_of, options, is_compared=True))
            )
            stats = dataset.stats
        kind = dataset.sources[0].kind if dataset.sources else "empty"
        print(
            f"{name}: {source}: {kind}, {stats.samples} samples, {stats.rows} rows, {stats.images} images, "
            f"digest {stats.digest}",
            flush=True,
        )
    first, *others = datasets
    is_equal = True
    for name in others:
        found = compare(datasets[first], datasets[name], names=(first, name))
        for difference in found.differences:
            print(f"mm-assets: difference: {difference}", file=sys.stderr)
        if found.is_cut:
            print(
                f"mm-assets: difference: {found.items} items in all differ between {first} and {name}",
                file=sys.stderr,
            )
        is_equal &= found.is_equal
    if is_equal:
        print("equal")
    return 0 if is_equal else 1
