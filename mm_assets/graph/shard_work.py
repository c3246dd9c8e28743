"""Worker side of the graph: what is done to one shard in a process of the pool.

* `convert_shard`: read, transform, check and write it, as the jobs of `shard_jobs` ask.
* `survey_raw_shard`: look through a raw shard before anything is made of it.
* `prove_shard`: read what was published with the library of its users, and compare.

Nothing here calls Dagster: a worker has no instance, and logs no event. It returns a `ShardResult`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa

from mm_assets.accounting import Balance, account_table, statistics_folder
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.canonical import (
    CanonicalSource,
    Derived,
    OutputProblems,
    derive,
    forget_reads,
    one_proof,
)
from mm_assets.accounting.comparison import compare
from mm_assets.accounting.erasures import DenyList
from mm_assets.accounting.formats import accounted_format
from mm_assets.accounting.loss_share import LossShare
from mm_assets.accounting.proof import ShardProof
from mm_assets.accounting.survey import ShardSurvey, layout_digest, scrubbed_survey, survey_shard
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.filters.chain import VERDICTS
from mm_assets.filters.duplicates import verdicts_uri
from mm_assets.formats.names import format_of
from mm_assets.formats.partitions import Partition
from mm_assets.formats.raw_shards import files_of
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import DEFAULT_BATCH_BYTES, Conversion, writer_for
from mm_assets.formats.reports import LEFT_OUT_MEMBERS
from mm_assets.formats.tar import TarDamage
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader
from mm_assets.formats.writer import InterleavedWriter, PartitionReport
from mm_assets.graph import (
    LOSS_SHARE,
    LOSS_SHARE_OF,
    MATERIALIZATION_ERRORS,
    Check,
    CheckStep,
    ShardJob,
    ShardResult,
    WrittenShard,
    blocked_by,
)
from mm_assets.model.errors import DENIED, ShardError, counted
from mm_assets.model.json_codec import is_json
from mm_assets.model.losses import Loss, MaterializeError
from mm_assets.model.samples import ROWS_CHANGED, Step
from mm_assets.model.schema import SchemaMismatch, schema_from_text, schema_to_text
from mm_assets.storage.errors import error_line, is_store_failure
from mm_assets.storage.files import NoRegularFile, size_of


class Observer(Protocol):
    """What watches a shard on its way, for those who look at it later."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that it watches, and its own."""

    def metadata(self) -> dict[str, Any]:
        """Return what it has seen, once the shard is made."""


class _Withheld(Exception):
    """A shard that is not published: a blocking check failed, or too much of it is lost."""


def convert_shard(
    job: ShardJob,
    reader: InterleavedReader,
    writer: InterleavedWriter,
    in_digest: str | None = None,
    max_loss: float | None = None,
    observer: Callable[[tuple[Step, ...]], Observer] | None = None,
    deny: Step | None = None,
) -> tuple[ShardResult, PartitionReport | None]:
    """Take one shard through its steps into a writer.

    Args:
        in_digest: digest of the shard's rows, where its version is one. What is written and what is lost must
            add up to it.
        max_loss: share of members and items (0..1) that may be lost; a shard that loses more is not
            published.
        observer: of the shard's steps.
        deny: goes before them, and is not observed: no picture of what it takes out is shown. With it, any
            other loss withholds the shard under the policy ``error``.

    Returns:
        The result, and the writer's report (None for a shard that failed).
    """
    side_inputs = {name: (shard.uri, shard.version) for name, shard in job.side_inputs.items()}
    if VERDICTS in job.options:
        uri = verdicts_uri(statistics_folder(job.root), job.key)
        side_inputs[VERDICTS] = uri, job.options[VERDICTS]
    steps = tuple(step.bind(side_inputs) if hasattr(step, "bind") else step for step in job.steps)
    watching = None if observer is None else observer(steps)
    partition = Partition(job.key, files_of(job.shard.uri))
    check_steps = (CheckStep(check) for check in job.checks if check.step is not None)
    steps = steps if watching is None else watching.steps
    first = () if deny is None else (deny,)
    conversion = Conversion(reader, partition, writer, (*first, *steps, *check_steps))
    checks: list[Check] = []

    def check(report: PartitionReport) -> None:
        faults = [loss.reason for loss in report.quarantined if loss.kind not in DENIED]
        if deny is not None and writer.on_materialize_error == "error" and faults:
            raise _Withheld(faults[0])
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
    metadata = report_metadata(report)
    if max_loss is not None:
        loss = LossShare.of_report(report)
        metadata |= {LOSS_SHARE: loss.share, LOSS_SHARE_OF: max(loss.total, 1)}
    if watching is not None:
        metadata |= watching.metadata()
    return (
        ShardResult(
            job.key,
            ok=True,
            uri=report.uri or "",
            version=report.digest,
            metadata=metadata,
            checks=tuple(checks),
            account=_account(report),
            rows=account_table(
                job.asset,
                job.key,
                _balance(report, in_digest),
                (*report.losses, *_unreferenced_losses(report)),
            ),
        ),
        report,
    )


def convert_parquet(job: ShardJob, kind: str) -> ShardResult:
    """Read one shard of Parquet and write it in the format ``kind``, into the folder of its output."""
    from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader

    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    folder, policy = job.dest.rpartition("/")[0], job.options["on_materialize_error"]
    writer = writer_for(kind, folder, on_materialize_error=policy, roots=())
    return convert_shard(job, reader, writer, job.shard.version)[0]


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
        metadata["filtered"] = {"json": _count_reasons(report.filtered)}
    if report.flagged:
        metadata["flagged"] = {"json": _count_reasons(report.flagged)}
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


_MOST_REASONS = 100  # of a kind: those of copies name another item each


def _count_reasons(losses: Collection[Loss]) -> dict[str, int]:
    """Return how many items were lost for each reason; of a kind with very many, for any."""
    reasons: dict[str, set[str]] = {}
    for loss in losses:
        reasons.setdefault(loss.kind, set()).add(loss.reason)
    return _count(
        f"{loss.kind}: {loss.reason}" if len(reasons[loss.kind]) <= _MOST_REASONS else loss.kind
        for loss in losses
    )


def _count(items: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts


_COUNTS = ("rows", "samples", "images", "texts", "digest")


@dataclass(frozen=True)
class ProofTarget:
    """The published output of one shard of an asset.

    Args:
        kind: name of the format.
        uri: the file, the table or the folder of the cache.
    """

    asset: str
    kind: str
    uri: str


@dataclass(frozen=True)
class ProofJob:
    """One shard of one output to prove.

    When something differs, it is compared with the outputs ``before`` and ``after`` it.

    Args:
        account: what its writer reported.
        before: the output that it was made from.
        after: the outputs that were made from it.
        table_schema: of a table, the columns that all shards share (`schema_to_text`).
        orphan_rows: number of rows in the table that belong to no shard.
        nbytes: size of the output, where it is one file, as the proof found it.
        proof: name of the proof that the job is of.
    """

    key: str
    output: ProofTarget
    account: Mapping[str, Any]
    root: str
    before: ProofTarget | None = None
    after: tuple[ProofTarget, ...] = ()
    table_schema: str = ""
    orphan_rows: int = 0
    nbytes: int | None = None
    proof: str = ""


def prove_shard(job: ProofJob) -> ShardProof:
    """Read one shard with the library of its users; compare counts, digest and types with those written.

    A shard that the store does not give out is not proven, but it is not damaged either.
    """
    try:
        with one_proof(job.proof):
            return _examined(job)
    except (OSError, ValueError) as error:
        if not is_store_failure(error):
            raise
        return _proof(job, Derived(), beside=(f"{job.output.uri}: not examined: {error_line(error)}",))


def _examined(job: ProofJob) -> ShardProof:
    written = job.account["written"]
    expected = schema_from_text(job.account["schema"])
    output = job.output
    try:
        try:
            found = derive(output.kind, output.uri, job.key)
        except (OSError, ValueError):
            if not forget_reads():
                raise
            # What other shards left open may be out of date: files that are gone since, credentials.
            found = derive(output.kind, output.uri, job.key)
    except (OSError, ValueError, TypeError, LookupError) as error:
        if is_store_failure(error):
            raise
        return _proof(job, Derived(), (f"{output.uri}: cannot be read: {error_line(error)}",))
    if job.table_schema and found.digest != written["digest"]:
        # Other shards have widened columns since: compare the rows in the types they were written in.
        planned = schema_from_text(job.table_schema)
        if not type_differences(planned, found.schema):
            found = derive(output.kind, output.uri, job.key, expected)
    if output.uri and format_of(output.kind).is_file:
        found = replace(found, nbytes=size_of(output.uri) if job.nbytes is None else job.nbytes)
    size_problems = _size_problems(job, found)
    orphan_rows = (
        (f"{output.uri}: {counted(job.orphan_rows, 'row belongs', 'rows belong')} to no shard",)
        if job.orphan_rows
        else ()
    )
    differing = [name for name in _COUNTS if written[name] != getattr(found, name)]
    if not differing:
        inspection = (
            OutputProblems()
            if size_problems or not output.uri
            else accounted_format(output.kind).examine(output.uri, found)
        )
        return _proof(job, found, (*size_problems, *orphan_rows, *inspection.problems), inspection.beside)
    problems = [f"{name}: {written[name]} written, {getattr(found, name)} found" for name in differing]
    return _proof(job, found, (*_differences(job), *problems, *size_problems, *orphan_rows))


def _size_problems(job: ProofJob, found: Derived) -> tuple[str, ...]:
    """Return a line for a file of another size than written: readers may ignore what was appended."""
    written = job.account.get("nbytes")
    if None in (found.nbytes, written) or found.nbytes == written:
        return ()
    return (f"{job.output.uri}: {written} bytes written, {found.nbytes} found",)


def type_differences(expected: pa.Schema, found: pa.Schema) -> list[str]:
    """Return a line for each column that is missing or of another type.

    Columns without values may be missing.
    """
    lines = []
    for column in expected:
        if pa.types.is_null(column.type):
            continue
        if column.name not in found.names:
            lines.append(f"column {column.name!r} is missing")
        elif found.field(column.name).type != column.type:
            lines.append(
                f"column {column.name!r}: {column.type} written, {found.field(column.name).type} found"
            )
    return lines


def _differences(job: ProofJob) -> list[str]:
    """Return sample, position and column of what differs.

    They are found by comparing with the outputs of the same shard before and after this one.
    """
    pairs = [(job.before, job.output, job.before)] if job.before is not None else []
    pairs += [(job.output, other, other) for other in job.after]
    lines: list[str] = []
    for left, right, other in pairs:
        lost = (
            Ledger(job.root)
            .items(right.asset, job.key)
            .select(["sample_id", "position", "modality"])
            .to_pylist()
        )
        places = {(item["sample_id"], item["position"], item["modality"]) for item in lost}
        try:
            result = compare(
                CanonicalSource(left.kind, left.uri, job.key),
                CanonicalSource(right.kind, right.uri, job.key),
                lost=places,
                names=(left.asset, right.asset),
            )
        except (OSError, ValueError, TypeError, LookupError) as error:
            if is_store_failure(error):
                raise
            lines.append(f"cannot be compared with {other.asset}: {error_line(error)}")
            continue
        lines.extend(str(difference) for difference in result.differences)
        if result.differences:
            break
    return lines


def _proof(
    job: ProofJob, found: Derived, problems: tuple[str, ...] = (), beside: tuple[str, ...] = ()
) -> ShardProof:
    root_prefix = f"{job.root.rstrip('/')}/"  # proofs are published: no paths of this machine in them
    problems, beside = (
        tuple(line.replace(root_prefix, "") for line in lines) for lines in (problems, beside)
    )
    derived = {name: getattr(found, name) for name in _COUNTS}
    return ShardProof(
        job.output.asset,
        job.key,
        accounted_format(job.output.kind).library,
        job.account["written"],
        derived,
        job.account["lost"],
        job.account["made_by"],
        problems=(*problems, *beside),
        beside=beside,
        examined_at=datetime.now(UTC).isoformat(timespec="microseconds"),
    )


@dataclass(frozen=True)
class SurveyJob:
    """One raw shard in one version, to be surveyed.

    Args:
        layout: arguments of the reader, with ``max_member_bytes``.
        relative_to: the folder that locators are relative to.
        root: the storage root.
        denies: whether there is a deny list.
    """

    key: str
    uri: str
    version: str
    layout: Mapping[str, Any]
    relative_to: str | None
    root: str
    denies: bool


def survey_raw_shard(job: SurveyJob) -> ShardSurvey:
    """Survey the shard, keep the result in the store, and return it."""
    reader = InterleavedWebdatasetReader((), **job.layout)
    limit = job.layout["max_member_bytes"]
    survey = survey_shard(
        job.key, files_of(job.uri), job.version, reader.layout, job.relative_to, max_member_bytes=limit
    )
    if job.denies:
        survey = scrubbed_survey(job.key, survey, DenyList.read(job.root))
    SurveyStore(job.root).write(job.key, survey)
    return survey


def digest_of_layout(layout: Mapping[str, Any]) -> str:
    """Return the digest of a layout, which its surveys are stored with."""
    return layout_digest(InterleavedWebdatasetReader((), **layout).layout, layout["max_member_bytes"])
