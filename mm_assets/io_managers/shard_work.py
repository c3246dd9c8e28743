"""Worker side of an asset of rows: read, transform, check and write one shard. Imports no Dagster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from mm_assets.accounting.file_digests import FILES, FileDigest, digest_files
from mm_assets.accounting.ledger import Balance, Ledger
from mm_assets.accounting.loss_share import LossShare
from mm_assets.filters.filter_chain import FilterChain
from mm_assets.formats.conversion import DEFAULT_BATCH_BYTES, Conversion
from mm_assets.formats.error_lines import error_line
from mm_assets.formats.images.thumbnails import ThumbnailStrip
from mm_assets.formats.partitions import Partition
from mm_assets.formats.raw_shards import files_of
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import writer_for
from mm_assets.formats.reports import LEFT_OUT_MEMBERS
from mm_assets.formats.storage import NoRegularFile
from mm_assets.formats.tar.header import TarDamage
from mm_assets.formats.writer import InterleavedWriter, PartitionReport
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.json_values import is_json
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.policies import MaterializeError
from mm_assets.interleaved.schema import SchemaMismatch
from mm_assets.interleaved.schema_text import schema_to_text
from mm_assets.interleaved.steps import ROWS_CHANGED
from mm_assets.io_managers.check_results import MATERIALIZATION_ERRORS
from mm_assets.io_managers.shards import Check, ShardJob, ShardResult, blocked_by
from mm_assets.io_managers.written_shard import CheckStep, WrittenShard
from mm_assets.overview.markdown import image
from mm_assets.preview.filter_observer import FilterObserver

# Metadata of a shard that was made from a raw one: the lost share of its members and items, and their
# number.
LOSS_SHARE = "loss_share"
LOSS_SHARE_OF = "loss_share_of"
# Metadata of a shard: some of its images, and some of those that its filters dropped.
PREVIEW, PREVIEW_DROPPED = "preview", "preview_dropped"


class _Withheld(Exception):
    """A shard that is not published: a blocking check failed, or too much of it is lost."""


def convert_shard(
    job: ShardJob,
    reader: InterleavedReader,
    writer: InterleavedWriter,
    in_digest: str | None = None,
    enters: bool = True,
    max_loss: float | None = None,
) -> tuple[ShardResult, PartitionReport | None]:
    """Take one shard through its steps into a writer, and enter it in the ledger.

    Args:
        in_digest: digest of the shard's rows, where its version is one. What is written and what is lost must
            add up to it.
        enters: whether to enter it in the ledger; else whoever publishes the shard does (`enter`).
        max_loss: share of members and items (0..1) that may be lost; a shard that loses more is not
            published.

    Returns:
        The result, and the writer's report (None for a shard that failed).
    """
    side_inputs = {name: (shard.uri, shard.version) for name, shard in job.side_inputs.items()}
    steps = tuple(step.bind(side_inputs) if hasattr(step, "bind") else step for step in job.steps)
    observers = {step: FilterObserver(step) for step in steps if isinstance(step, FilterChain)}
    steps = tuple(observers[step].observed() if step in observers else step for step in steps)
    partition = Partition(job.key, files_of(job.shard.uri))
    shown, dropped = ThumbnailStrip(), ThumbnailStrip()
    steps = tuple(dropped.of_removed(step) for step in steps)
    check_steps = (CheckStep(check) for check in job.checks if check.step is not None)
    conversion = Conversion(reader, partition, writer, (*steps, *check_steps, shown))
    checks: list[Check] = []

    def check(report: PartitionReport) -> None:
        shard = WrittenShard(report, _balance(report, in_digest), writer.on_materialize_error)
        checks.extend(declared.outcome(shard.shown_to(declared)) for declared in job.checks)
        reason = blocked_by(checks, job.blocking) or (
            None if max_loss is None else LossShare.of_report(report).refusal(max_loss)
        )
        if reason is not None:
            raise _Withheld(reason)

    try:
        report = conversion.run(check)
    except _Withheld as error:
        return ShardResult(job.key, ok=False, checks=tuple(checks), error=str(error)), None
    except MaterializeError as error:
        failed = Check(MATERIALIZATION_ERRORS, False, "ERROR", {"policy": "error", "first": str(error)})
        return ShardResult(job.key, ok=False, checks=(failed,), error=str(error)), None
    except (
        ShardError,
        TarDamage,
        NoRegularFile,
        IsADirectoryError,
        SchemaMismatch,
        FileNotFoundError,
    ) as error:
        return ShardResult(job.key, ok=False, error=error_line(error)), None
    account = _account(report)
    if enters:
        account[FILES] = enter(job.root, job.asset, report, in_digest, _unreferenced_losses(report))
    metadata = report_metadata(report)
    if max_loss is not None:
        loss = LossShare.of_report(report)
        metadata |= {LOSS_SHARE: loss.share, LOSS_SHARE_OF: max(loss.total, 1)}
    # Assets that take over all rows of their source show what it shows.
    if job.steps or max_loss is not None:
        for name, strip in ((PREVIEW, shown), (PREVIEW_DROPPED, dropped)):
            if picture := strip.webp():
                metadata[name] = {"md": image(picture, "image/webp")}
    for observer in observers.values():
        metadata |= {name: {"md": picture} for name, picture in observer.pictures().items()}
    return (
        ShardResult(
            job.key,
            ok=True,
            uri=report.uri or "",
            version=report.digest,
            metadata=metadata,
            checks=tuple(checks),
            account=account,
        ),
        report,
    )


def convert_parquet(job: ShardJob, kind: str) -> ShardResult:
    """Read one shard of Parquet and write it in the format ``kind``, into the folder of its output."""
    from mm_assets.formats.parquet import InterleavedParquetReader

    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    folder, policy = job.dest.rpartition("/")[0], job.options["on_materialize_error"]
    writer = writer_for(kind, folder, on_materialize_error=policy, roots=())
    return convert_shard(job, reader, writer, job.shard.version)[0]


def enter(
    root: str, asset: str, report: PartitionReport, in_digest: str | None, more: Iterable[Loss] = ()
) -> dict[str, FileDigest | None]:
    """Enter a published shard in the ledger.

    Returns:
        The digests of the ledger's files, by which a later run checks them.
    """
    ledger = Ledger(root)
    ledger.write(asset, report.partition, (_balance(report, in_digest), (*report.losses, *more)))
    return digest_files(root, ledger.uris(asset, report.partition))


def _balance(report: PartitionReport, in_digest: str | None) -> Balance:
    # A step that changes rows changes their digest, but not their number.
    return Balance.of(report, None if report.counts.get(ROWS_CHANGED) else in_digest)


def _account(report: PartitionReport) -> dict[str, Any]:
    """Return what a later proof compares the output with."""
    written = {name: getattr(report, name) for name in ("rows", "samples", "images", "texts", "digest")}
    lost = {"rows": sum(loss.is_item for loss in report.losses), "digest": report.lost_digest}
    return {
        "written": written,
        "lost": lost,
        "schema": schema_to_text(report.schema),
        "nbytes": report.nbytes,
    }


def _unreferenced_losses(report: PartitionReport) -> Iterator[Loss]:
    """Yield members and frames that are no image of any sample.

    They are no items, so they need not balance, but they are listed.
    """
    for notes in report.notes.values():
        yield from notes.get("unreferenced_losses", ())


def report_metadata(report: PartitionReport) -> dict[str, Any]:
    """Return the counts of a report as plain values for an event."""
    metadata: dict[str, Any] = {
        "dagster/partition_row_count": report.rows,
        **({"items_in": report.items} if report.items is not None else {}),
        "samples": report.samples,
        "images": report.images,
        "texts": report.texts,
        "bytes": report.nbytes,
        "image_bytes": report.image_bytes,
        "dagster/column_schema": {"table_schema": column_schema(report.schema)},
    }
    if report.filtered:
        metadata["filtered"] = {"json": _count(loss.kind + ": " + loss.reason for loss in report.filtered)}
    if report.flagged:
        metadata["flagged"] = {"json": _count(loss.kind + ": " + loss.reason for loss in report.flagged)}
    if report.quarantined:
        metadata["quarantined"] = {"json": _count(loss.kind for loss in report.quarantined if loss.is_item)}
        if damaged_ranges := sum(not loss.is_item for loss in report.quarantined):
            metadata["damaged_stretches"] = damaged_ranges
    if report.errors:
        metadata["errors"] = {"json": _count(error.outcome for error in report.errors)}
    if report.dropped_columns:
        metadata["columns_left_out"] = {"json": list(report.dropped_columns)}
    for kind in ("unreferenced_members", "unreferenced_frames", "skipped_members", LEFT_OUT_MEMBERS):
        if names := [name for notes in report.notes.values() for name in notes.get(kind, [])]:
            metadata[kind] = {"json": {"count": len(names), "first": names[:20]}}
    return metadata


def column_schema(schema: pa.Schema) -> list[list[str]]:
    """Return names and types for display; a column of JSON text has the type ``json``."""
    return [[field.name, "json" if is_json(field) else str(field.type)] for field in schema]


def reader_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that all readers of the graph share."""
    return {"max_batch_bytes": options.get("max_batch_bytes") or DEFAULT_BATCH_BYTES}


def _count(items: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts
