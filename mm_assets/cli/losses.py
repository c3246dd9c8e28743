"""Losses of a conversion: a summary by kind, and lists of all lost items beside the output."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mm_assets.interleaved.counted import counted

if TYPE_CHECKING:  # commands start faster without pyarrow
    from mm_assets.formats.writer import InterleavedWriter, PartitionReport
    from mm_assets.interleaved.losses import Loss


def folder(writer: InterleavedWriter) -> str:
    """Return the folder of the lists: beside the data, where readers ignore it."""
    from mm_assets.formats.local_tree import LEDGER_BESIDE
    from mm_assets.formats.storage import join

    any_output = writer.uri_of("any")  # all lie in one folder
    return join(os.path.dirname(any_output) or ".", LEDGER_BESIDE)


def publish(writer: InterleavedWriter, reports: Sequence[PartitionReport]) -> None:
    """Publish a list of lost items per partition, in the columns of the ledger.

    For a partition without losses the list of an earlier conversion is removed.
    """
    from mm_assets.accounting.ledger import items_table, publish_losses
    from mm_assets.formats.file_stamps import existing_files
    from mm_assets.formats.keys import partition_filename
    from mm_assets.formats.storage import join

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
