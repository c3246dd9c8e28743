"""What workers do with one shard, for every format: read, transform, check, write. Imports no Dagster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from mm_assets.formats.conversion import DEFAULT_BATCH_BYTES, Conversion
from mm_assets.formats.images.thumbnails import ThumbnailStrip
from mm_assets.formats.partitions import Partition
from mm_assets.formats.raw_shards import files_of
from mm_assets.formats.reader import InterleavedReader, ShardError
from mm_assets.formats.webdataset.tar_header import TarDamage
from mm_assets.formats.writer import InterleavedWriter, PartitionReport
from mm_assets.interleaved.json_values import is_json
from mm_assets.interleaved.policies import MaterializeError
from mm_assets.interleaved.schema import SchemaMismatch
from mm_assets.io_managers.findings import materialization_errors, schema_alignment
from mm_assets.io_managers.shards import Check, Done, Job, blocked_by


class _Withheld(Exception):
    """A blocking check failed: what was written is not published."""


def convert_shard(job: Job, reader: InterleavedReader, writer: InterleavedWriter) -> tuple[Done, PartitionReport | None]:
    """Take one shard through its steps into a writer and say what came of it."""
    side = {name: shard.uri for name, shard in job.side.items()}
    steps = tuple(step.bind(side) if hasattr(step, "bind") else step for step in job.steps)
    partition = Partition(job.key, files_of(job.shard.uri))
    strip = ThumbnailStrip()
    conversion = Conversion(reader, partition, writer, (*steps, strip))
    checks: list[Check] = []

    def check(report: PartitionReport) -> None:
        checks.extend([schema_alignment(report), materialization_errors(report, writer.on_materialize_error)])
        if (reason := blocked_by(checks, job.blocking)) is not None:
            raise _Withheld(reason)

    try:
        report = conversion.run(check)
    except _Withheld as error:
        return Done(job.key, ok=False, checks=tuple(checks), error=str(error)), None
    except MaterializeError as error:
        failed = Check("materialization_errors", False, "ERROR", {"policy": "error", "first": str(error)})
        return Done(job.key, ok=False, checks=(failed,), error=str(error)), None
    except (ShardError, TarDamage, SchemaMismatch, FileNotFoundError) as error:
        return Done(job.key, ok=False, error=str(error)), None
    metadata = report_metadata(report)
    if markdown := strip.markdown():
        metadata["preview"] = {"md": markdown}
    done = Done(job.key, ok=True, uri=report.uri or "", version=report.digest, metadata=metadata, checks=tuple(checks))
    return done, report


def report_metadata(report: PartitionReport) -> dict[str, Any]:
    """The counts of a report as plain values for an event."""
    metadata: dict[str, Any] = {
        "dagster/partition_row_count": report.rows,
        "samples": report.samples,
        "images": report.images,
        "texts": report.texts,
        "bytes": report.nbytes,
        "image_bytes": report.image_bytes,
        "dagster/column_schema": {"table_schema": column_schema(report.schema)},
    }
    if report.filtered:
        metadata["filtered"] = {"json": _count(item.filter + ": " + item.reason for item in report.filtered)}
    if report.errors:
        metadata["errors"] = {"json": _count(error.outcome for error in report.errors)}
    if report.dropped_columns:
        metadata["columns_left_out"] = {"json": list(report.dropped_columns)}
    unread = [name for notes in report.notes.values() for name in notes.get("unreferenced_members", [])]
    if unread:
        metadata["unreferenced_members"] = {"json": {"count": len(unread), "first": unread[:20]}}
    return metadata


def column_schema(schema: pa.Schema) -> list[list[str]]:
    """Names and types for display; a column of JSON text is called that."""
    return [[field.name, "json" if is_json(field) else str(field.type)] for field in schema]


def reader_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that all readers of the graph share."""
    return {"max_batch_bytes": options.get("max_batch_bytes") or DEFAULT_BATCH_BYTES}


def _count(items: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts
