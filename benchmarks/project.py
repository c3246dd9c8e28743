"""This project's side: conversions composed as ``mm-assets convert`` composes them, in the measured process
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import Work
from benchmarks.routes import MAX_ASPECT_RATIO, MIN_ASPECT_RATIO, PER_IMAGE_FIELDS

if TYPE_CHECKING:  # imports are part of a task's preparation
    from mm_assets.formats.registry import Conversion
    from mm_assets.formats.reports import PartitionReport
    from mm_assets.formats.writer import InterleavedWriter
    from mm_assets.model.samples import Step


def prepare(
    source: str,
    target: str,
    files: Sequence[str],
    output: str,
    warm_up: Sequence[str],
    is_filtered: bool = True,
) -> Work:
    """Convert ``files`` of format ``source`` into a folder; ``warm_up`` are small ones that load every module
    before.
    """
    convert(source, target, warm_up, f"{output}.warm-up", is_filtered)
    return lambda: counts(convert(source, target, files, output, is_filtered))


def convert(
    source: str, target: str, files: Sequence[str], output: str, is_filtered: bool = True
) -> list[PartitionReport]:
    """Plan, convert one partition after the other, finish."""
    from mm_assets.accounting import publish_lists

    conversions = plan(source, target, files, output, is_filtered)
    reports = [conversion.run() for conversion in conversions]
    writer: InterleavedWriter = conversions[0].writer
    writer.finish(reports)
    publish_lists(writer, reports)
    return reports


def plan(
    source: str, target: str, files: Sequence[str], output: str, is_filtered: bool = True
) -> list[Conversion]:
    """The conversions of all files."""
    from mm_assets.filters.readable import ReadableImages
    from mm_assets.filters.registry import AspectRatioFilter
    from mm_assets.formats.partitions import root_of_locations
    from mm_assets.formats.registry import (
        DEFAULT_BATCH_BYTES,
        SUFFIXES,
        plan_conversions,
        reader_for,
        writer_for,
    )

    root = root_of_locations(files, SUFFIXES)
    arguments: dict[str, Any] = {"max_batch_bytes": DEFAULT_BATCH_BYTES, "roots": [root], "materialize": True}
    if source == "webdataset":
        arguments |= {"relative_to": root, "per_image_fields": PER_IMAGE_FIELDS}
    reader = reader_for(source, list(files), **arguments)
    writer = writer_for(target, output, roots=[root])
    steps: list[Step] = [ReadableImages()]
    if is_filtered:
        steps.append(AspectRatioFilter(MIN_ASPECT_RATIO, MAX_ASPECT_RATIO))
    return plan_conversions(reader, writer, steps)


def counts(reports: Sequence[PartitionReport]) -> dict[str, Any]:
    """What was written in all."""
    return {
        name: sum(getattr(report, name) for report in reports) for name in ("samples", "images", "nbytes")
    }
