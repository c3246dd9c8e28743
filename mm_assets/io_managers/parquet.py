"""IO managers of Parquet: raw shards or Parquet in, interleaved Parquet out."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import dagster as dg
import pyarrow as pa
from pydantic import Field, PrivateAttr

from mm_assets.accounting.outputs import BY_ASSET
from mm_assets.accounting.records import LOST_IDS, ShardRecord, ShardRecords
from mm_assets.accounting.survey_index import SurveyIndex
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.formats.partitions import own_name, parse_bytes
from mm_assets.formats.raw_shards import files_of, relative_root
from mm_assets.interleaved.schema_text import schema_from_text, schema_to_text
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.check_log import CheckLog
from mm_assets.io_managers.planned_jobs import PlannedJob
from mm_assets.io_managers.raw_gate import GATE_CHECKS, RawGate, ShardInspection, unreadable
from mm_assets.io_managers.raw_input import RawInput
from mm_assets.io_managers.shard_checks import specs_by_shard
from mm_assets.io_managers.shards import Check, Plan, ShardJob, ShardResult

_MOST_LOST_IDS = 1000  # in a record
_MEMBERS = "members"  # in the account of a group: the names of its raw shards


def ingest_shard(job: ShardJob) -> ShardResult:
    """Read one raw shard and write it as Parquet.

    What cannot be read is quarantined, unless the policy is ``error``.
    """
    from mm_assets.accounting.contract import Published
    from mm_assets.accounting.file_digests import FILES, digest_files
    from mm_assets.formats.parquet import InterleavedParquetWriter
    from mm_assets.formats.raw_reader import RawReader
    from mm_assets.interleaved.faults import DUPLICATE_ID
    from mm_assets.io_managers.shard_work import convert_shard, reader_arguments

    options = job.options
    policy = options["on_materialize_error"]
    reader = RawReader(
        (),
        **options["layout"],
        quarantine_errors=policy != "error",
        taken_ids=options["taken_ids"],
        schema_overrides={field.name: field for field in schema_from_text(options["columns"])},
        relative_to=relative_root(options["raw_roots"]),
        **reader_arguments(options),
    )
    writer = InterleavedParquetWriter(job.dest, on_materialize_error=policy, roots=options["raw_roots"])
    result, report = convert_shard(job, reader, writer, max_loss=options["max_loss"])
    if report is not None and (members := _members(job)):
        result = replace(result, account={**result.account, _MEMBERS: members})
    if report is not None:
        taken = set(options["taken_ids"])
        lost = {
            loss.sample_id
            for loss in report.losses
            if loss.kind != DUPLICATE_ID and loss.modality == "metadata" and loss.sample_id is not None
        }
        # What another shard keeps has not been read this time: it is as it was.
        if listed := sorted(lost.union(taken.intersection(options[LOST_IDS])))[:_MOST_LOST_IDS]:
            result = replace(result, account={**result.account, LOST_IDS: listed})
        store = SurveyStore(job.root)
        survey = store.read(job.key, job.shard.version)
        if survey is not None:
            absent = lost | taken
            ids = [sample_id for sample_id in survey.sample_ids.to_pylist() if sample_id not in absent]
            notes = store.write_published(job.key, Published(report.schema, survey.columns), ids)
            result = replace(
                result,
                account={**result.account, FILES: {**result.account[FILES], **digest_files(job.root, notes)}},
            )
    return result


def rewrite_shard(job: ShardJob) -> ShardResult:
    """Read one curated shard, apply the steps, write it as Parquet."""
    from mm_assets.formats.parquet import InterleavedParquetReader, InterleavedParquetWriter
    from mm_assets.io_managers.shard_work import convert_shard, reader_arguments

    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    writer = InterleavedParquetWriter(
        job.dest, on_materialize_error=job.options["on_materialize_error"], roots=()
    )
    return convert_shard(job, reader, writer, job.shard.version)[0]


class _ParquetOutput(ShardIOManager):
    on_materialize_error: str = Field(default="error", description="error, warn, drop_row or drop_sample.")
    max_batch_bytes: str = Field(default="16MiB", description="Bytes of one batch in a worker's memory.")

    def locate(self, asset: str, key: str) -> str:
        return BY_ASSET[asset].place(self.root, key)

    def options(self) -> dict[str, object]:
        return {**super().options(), "max_batch_bytes": parse_bytes(self.max_batch_bytes)}


class IngestIOManager(RawInput, _ParquetOutput):
    """Writes curated Parquet from raw shards that passed the integrity gate."""

    gate: dg.ResourceDependency[RawGate]

    run_job = staticmethod(ingest_shard)

    _verdicts: dict[str, tuple[Check, ...]] = PrivateAttr(default_factory=dict)
    _refused: set[str] = PrivateAttr(default_factory=set)
    _lost_ids: dict[str, frozenset[str]] = PrivateAttr(default_factory=dict)
    _source: str = PrivateAttr(default="")

    def options(self) -> dict[str, object]:
        return {**super().options(), "layout": self.gate.layout()}

    def limit(self) -> str:
        return f"{self.gate.max_loss:g}"

    def resolve_jobs(self, plan: Plan, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Return the jobs with the types of columns and the ids to skip, from the surveys of all shards."""
        inspections = self.gate.inspect([job.shard for job in jobs])
        is_strict = self.on_materialize_error == "error"
        before = ShardRecords(self.root).read(jobs[0].asset, [job.key for job in jobs])
        self._lost_ids = {
            job.key: before[job.key].lost_ids(job.shard.version) for job in jobs if job.key in before
        }
        self._source = plan.source.asset
        resolved: list[ShardJob | ShardResult] = []
        for job in jobs:
            inspection = inspections[job.key]
            checks = unreadable(inspection) if isinstance(inspection, str) else inspection.checks
            refusal = (
                _refusal_of(inspection, is_strict)
                or _refusal_to_empty(inspection, before.get(job.key))
                or _refusal_to_shrink(job, before.get(job.key))
            )
            self._verdicts[job.key] = checks
            if refusal is not None:
                self._refused.add(job.key)
                resolved.append(ShardResult(job.key, ok=False, error=refusal))
                continue
            assert isinstance(inspection, ShardInspection)
            resolved_options: dict[str, object] = {
                "columns": schema_to_text(_ordered_columns(inspection)),
                "taken_ids": sorted(inspection.claimed_ids),
            }
            if inspection.survey.has_pairs:  # earlier outputs have the image at position 0: made again
                resolved_options["image_position"] = 1
            resolved.append(replace(job, options={**job.options, **resolved_options}))
        return resolved

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob]:
        """Return the jobs with the tolerated loss, and the ids that were lost before.

        They are no part of the fingerprint: they decide what is published and recorded, not what is written.
        """
        return [
            replace(
                job,
                options={
                    **job.options,
                    "max_loss": self.gate.max_loss,
                    LOST_IDS: sorted(self._lost_ids.get(job.key, ())),
                },
            )
            for job in super().prepare_chunk(jobs)
        ]

    def before_jobs(self, planned: Mapping[str, PlannedJob]) -> None:
        """Log the results of the integrity gate on the raw shards that are read or refused in this run."""
        run = dg.AssetExecutionContext.get()
        asset = dg.AssetKey.from_user_string(self._source)
        log = CheckLog(
            run.instance,
            run.run.run_id,
            run.log_event,
            asset,
            {spec.name: spec for spec in specs_by_shard(asset, GATE_CHECKS)},
        )
        for key, checks in self._verdicts.items():
            if key in planned or key in self._refused:
                log.add(key, checks)
        log.finish()
        self._verdicts, self._refused = {}, set()

    def after_jobs(self, made: Collection[str]) -> None:
        """Index the notes on what was published, so that a run which changes nothing writes nothing."""
        try:
            SurveyIndex(SurveyStore(self.root)).add_published(made)
        except (OSError, ValueError) as error:  # the notes are there; the next run indexes them
            dg.get_dagster_logger().warning("the index of published shards stays as it is: %s", error)


def _refusal_of(inspection: ShardInspection | str, is_strict: bool) -> str | None:
    """Return why a shard may not be read at all, or None."""
    if isinstance(inspection, str):
        return inspection
    if inspection.decision.refused:
        return "; ".join(inspection.decision.refused.values())
    if is_strict and inspection.claimed_ids:
        sample_id, owner = next(iter(sorted(inspection.claimed_ids.items())))
        return f"sample id {sample_id!r} is already in shard {owner!r}"
    return inspection.refusal


def _ordered_columns(inspection: ShardInspection) -> pa.Schema:
    """Return the resolved columns in the shard's own order.

    Another shard must not change the bytes of this one's output.
    """
    fields = {field.name: field for field in inspection.decision.fields}
    return pa.schema([fields[name] for name in inspection.survey.columns.required_types()])


def _refusal_to_empty(inspection: ShardInspection | str, before: ShardRecord | None) -> str | None:
    """Return why an unreadable shard may not replace published samples, or None.

    A valid tar without samples may replace them.
    """
    if (
        isinstance(inspection, str)
        or inspection.survey.samples.num_rows
        or before is None
        or not before.account["written"]["samples"]
    ):
        return None
    damage = [
        loss.reason
        for losses in inspection.survey.losses.values()
        for loss in losses.first
        if not loss.is_item
    ]
    if not damage:
        return None
    kept = before.account["written"]["samples"]
    return (
        f"{damage[0]}. No sample can be read: the {kept} published before stay "
        "(an empty tar would remove them)"
    )


def _refusal_to_shrink(job: ShardJob, before: ShardRecord | None) -> str | None:
    """Return why a group of raw shards may not be made without some that it was made from, or None."""
    known = set(before.account.get(_MEMBERS, ())) if before is not None else set()
    gone = sorted(known.difference(_members(job)))
    if not gone:
        return None
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    return (
        f"raw shard {gone[0]!r}{more} of this partition is gone: the samples published before stay "
        "(an empty tar in its place would remove them)"
    )


def _members(job: ShardJob) -> list[str]:
    """Return the names of the raw shards in a group; none if the partition is one raw shard."""
    names = (own_name(job.key, file) for file in files_of(job.shard.uri))
    return [name for name in names if name is not None]


class ParquetIOManager(_ParquetOutput):
    """Writes Parquet from Parquet."""

    run_job = staticmethod(rewrite_shard)


IO_MANAGER = ParquetIOManager
