"""Report of a conversion, finished or planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mm_assets.cli import losses
from mm_assets.interleaved.counted import counted

if TYPE_CHECKING:  # commands start faster without pyarrow
    from mm_assets.formats.existing_partitions import ExistingPartitions
    from mm_assets.formats.reports import WriteReport
    from mm_assets.formats.writer import InterleavedWriter

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
    from mm_assets.formats.content_columns import untaken_in, untaken_lines
    from mm_assets.formats.reports import empty_shards_lines, left_out_lines, left_out_of

    print(
        f"{report.path}: {counted(len(report.partitions), 'partition')}, "
        f"{counted(report.samples, 'sample')}, {counted(report.images, 'image')}, "
        f"{counted(report.texts, 'text')}, {report.nbytes / 1e6:.1f} MB, {seconds:.1f} s"
    )
    for line in losses.summary(report.losses):
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
