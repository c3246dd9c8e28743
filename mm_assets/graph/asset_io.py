"""IO managers of the assets: of rows, one for each format, of the quarantine, and of scores.

* `IngestIOManager`: raw shards that passed the integrity gate in, curated Parquet out.
* `ParquetIOManager`: Parquet in, Parquet out.
* `LanceIOManager`: workers write fragments, the parent commits a chunk of shards to the one table at once.
* `WebdatasetIOManager`: Parquet in, tars and the index files of all clients out.
* `ArrowCacheIOManager`: Parquet in, memory-mapped Arrow files out.
* `QuarantineIOManager`: the faulty items of each shard with their raw bytes, collected from the ledger.
* `ScoresIOManager`, `SampleScoresIOManager`: a small Parquet file per shard. What is measured is not measured
  again: `with_known_scores` gives workers the scores that a shard has already, as far as they are of the same
  rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import Field, PrivateAttr

from mm_assets.accounting import (
    BY_ASSET,
    CACHE,
    CURATED,
    DERIVED_FOLDERS,
    LANCE,
    LOST_IDS,
    TARS,
    ShardRecord,
    index_folder,
    lists_folder,
    statistics_folder,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.contract import SCHEMA_CHANGES, disagreement
from mm_assets.accounting.erasures import DenyList
from mm_assets.accounting.proof import damaged_shards
from mm_assets.accounting.survey_store import SurveyIndex, SurveyStore
from mm_assets.filters import FilterSettingError
from mm_assets.filters.chain import VERDICTS, FilterChain
from mm_assets.filters.duplicates import VerdictIndex, duplicate_filters
from mm_assets.filters.known_hashes import opened_hash_lists
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UnreadableFile
from mm_assets.formats.partitions import parse_bytes
from mm_assets.graph import Check, Plan, ShardJob, ShardResult, dagster_internals, digest
from mm_assets.graph.io_manager import ShardIOManager
from mm_assets.graph.planned_jobs import CheckLog, specs_by_shard
from mm_assets.graph.raw import GATE_CHECKS, RawGate, RawInput, ShardInspection, judged_before, unreadable
from mm_assets.graph.shard_jobs import (
    CLOSED_RECORDS,
    GROUP_MEMBERS,
    IMAGES,
    KNOWN_SCORES,
    PlannedJob,
    cache_shard,
    fragment_shard,
    ingest_shard,
    members_of,
    pack_shard,
    quarantine_shard,
    rewrite_shard,
    score_samples_of_shard,
    score_shard,
)
from mm_assets.model.errors import counted
from mm_assets.model.schema import schema_to_text
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import is_remote, join, local_path


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
    _observed: dict[str, int] = PrivateAttr(default_factory=dict)
    _refused: set[str] = PrivateAttr(default_factory=set)
    _lost_ids: dict[str, frozenset[str]] = PrivateAttr(default_factory=dict)
    _source: str = PrivateAttr(default="")
    _denied: DenyList | None = PrivateAttr(default=None)

    def options(self) -> dict[str, object]:
        lists = {"hash_lists": [each.digest for each in opened_hash_lists(self.hash_lists)]}
        given = lists if self.hash_lists else {}
        return {**super().options(), "layout": self.gate.known_layout(), **given}

    def deny_list(self) -> DenyList:
        """Return what was denied when the jobs were resolved: a run asks the store once."""
        return super().deny_list() if self._denied is None else self._denied

    def limit(self) -> str:
        widens = self.gate.schema_changes != SCHEMA_CHANGES[0]
        return f"{self.gate.max_loss:g}{f'_{self.gate.schema_changes}' if widens else ''}"

    def resolve_jobs(self, plan: Plan, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Return the jobs with the types of columns and the ids to skip, from the surveys of all shards."""
        self._denied = None
        self._denied = deny = self.deny_list()
        inspections = self.gate.inspect([job.shard for job in jobs], deny)
        is_strict = self.on_materialize_error == "error"
        before = Ledger(self.root).records(jobs[0].asset, [job.key for job in jobs])
        self._lost_ids = {
            job.key: before[job.key].lost_ids(job.shard.version) for job in jobs if job.key in before
        }
        self._source = plan.source.asset
        pointers = {job.key: job.shard.pointer for job in jobs}
        self._observed = {key: pointer for key, pointer in pointers.items() if pointer is not None}
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
            if inspection.survey.documents:  # earlier outputs have no items of such documents: made again
                resolved_options["documents"] = inspection.survey.documents
            if erasures := deny.erasures_of(job.key):
                resolved_options["erasures"] = erasures
            resolved.append(replace(job, options={**job.options, **resolved_options}))
        decisions = {
            key: found.decision for key, found in inspections.items() if isinstance(found, ShardInspection)
        }
        absent = {name for decision in decisions.values() for name in decision.absent}
        columns = {name for step in plan.foreseen if isinstance(step, FilterChain) for name in step.columns}
        with _as_failure([disagreement(name, decisions) for name in sorted(columns)]):
            _fitted(
                self.root,
                plan.foreseen,
                {key: decision.fields for key, decision in decisions.items()},
                [pa.schema([pa.field(name, pa.null()) for name in sorted(absent)])],
            )
        return resolved

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob]:
        """Return the jobs with the tolerated loss, the ids that were lost before, and where images lie.

        They are no part of the fingerprint: they decide what is published and recorded, not what is written.
        """
        return [
            replace(
                job,
                options={
                    **job.options,
                    "layout": self.gate.layout(),
                    "max_loss": self.gate.max_loss,
                    LOST_IDS: sorted(self._lost_ids.get(job.key, ())),
                },
            )
            for job in super().prepare_chunk(jobs)
        ]

    def before_jobs(self, planned: Mapping[str, PlannedJob]) -> None:
        """Log the results of the integrity gate on the raw shards that are read or refused in this run.

        And on those that need no work, but were judged last in another version: a damaged shard was replaced
        by the one before.
        """
        run = dg.AssetExecutionContext.get()
        asset = dg.AssetKey.from_user_string(self._source)
        log = CheckLog(
            run.instance,
            run.run.run_id,
            dagster_internals.event_logger(run),
            asset,
            {spec.name: spec for spec in specs_by_shard(asset, GATE_CHECKS)},
        )
        judged = {key for key in self._verdicts if key in planned or key in self._refused}
        unchanged = {key: pointer for key, pointer in self._observed.items() if key not in judged}
        judged |= judged_before(run.instance, asset, unchanged)
        for key, checks in self._verdicts.items():
            if key in judged:
                log.add(key, checks)
        log.finish()
        self._verdicts, self._refused = {}, set()

    def after_jobs(self, made: Sequence[ShardResult]) -> None:
        """Index what was published, so that a run which changes nothing writes nothing."""
        facts = {result.key: result.payload for result in made if result.payload is not None}
        versions = {result.key: result.version for result in made}
        try:
            SurveyIndex(SurveyStore(self.root)).add_published(versions, facts)
        except (OSError, ValueError) as error:  # the accounts tell; the next run indexes them
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
    known = set(before.account.get(GROUP_MEMBERS, ())) if before is not None else set()
    gone = sorted(known.difference(members_of(job)))
    if not gone:
        return None
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    return (
        f"raw shard {gone[0]!r}{more} of this partition is gone: the samples published before stay "
        "(an empty tar in its place would remove them)"
    )


class ParquetIOManager(_ParquetOutput):
    """Writes Parquet from Parquet."""

    images: str = Field(
        default="copy", description="Images of filtered Parquet: copy, or reference to those in curated."
    )

    run_job = staticmethod(rewrite_shard)

    def options(self) -> dict[str, object]:
        options = super().options()
        if self.images == "copy":  # as it was before there was a choice: fingerprints stay
            del options[IMAGES]
        return options

    def resolve_jobs(self, plan: Plan, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Return the jobs with what their filters have to know of all shards."""
        chains = [step for step in plan.steps if isinstance(step, FilterChain)]
        with _as_failure():
            for chain in chains:
                chain.refuse_missing_statistics()
        jobs, missing = self._with_verdicts(chains, jobs)
        return [*missing, *self._with_columns(plan, chains, jobs)]

    def _with_verdicts(
        self, chains: Iterable[FilterChain], jobs: Sequence[ShardJob]
    ) -> tuple[list[ShardJob], list[ShardResult]]:
        """Return the jobs with the digests of the verdicts on duplicates, and the faults of those without."""
        if not duplicate_filters(judge for chain in chains for judge in chain.filters):
            return list(jobs), []
        index = VerdictIndex.read(statistics_folder(self.root))
        faults = {job.key: index.fault(job.key, job.shard.version) for job in jobs}
        made = [
            replace(job, options={**job.options, VERDICTS: index.shards[job.key][1]})
            for job in jobs
            if faults[job.key] is None
        ]
        return made, [ShardResult(key, ok=False, error=fault) for key, fault in faults.items() if fault]

    def _with_columns(
        self, plan: Plan, chains: Iterable[FilterChain], jobs: Sequence[ShardJob]
    ) -> Sequence[ShardJob]:
        """Return the jobs with steps that know the columns of all shards; fingerprints stay as they are."""
        if not any(chain.columns for chain in chains):
            return jobs
        asset = plan.source.asset
        store, landed = SurveyStore(self.root, asset=asset), Ledger(self.root).named(asset)
        index = SurveyIndex(store).published if asset == CURATED.asset else store.published
        schemas = {key: published.schema for key, published in dict(index(landed)).items()}
        own = {job.key: schemas.pop(job.key) for job in jobs if job.key in schemas}
        steps = fitted_steps(self.root, plan.steps, own, *schemas.values())
        return [replace(job, steps=steps) for job in jobs]


def fitted_steps(
    root: str, steps: Sequence[Any], shards: Mapping[str, pa.Schema], *others: pa.Schema
) -> tuple[Any, ...]:
    """Return steps with filters that fit the columns of shards, see `Filter.fitted`.

    Raises:
        dagster.Failure: a filter does not.
    """
    with _as_failure():
        return _fitted(root, steps, shards, others)


def _fitted(
    root: str, steps: Sequence[Any], shards: Mapping[str, pa.Schema], others: Sequence[pa.Schema]
) -> tuple[Any, ...]:
    folder = lists_folder(root)
    return tuple(
        step.fitted(shards, others, folder) if isinstance(step, FilterChain) else step for step in steps
    )


@contextmanager
def _as_failure(notes: Iterable[str] = ()) -> Iterator[None]:
    """Raise the fault of a filter's setting as the failure of a step, with notes that are not empty."""
    try:
        yield
    except FilterSettingError as error:
        line = "; ".join([str(error), *filter(None, notes)])
        raise dg.Failure(line, allow_retries=False) from error


class LanceIOManager(ShardIOManager):
    """Writes all shards into one table with scalar indexes; replacing a chunk of shards is one commit."""

    on_materialize_error: str = Field(default="error", description="error, warn, drop_row or drop_sample.")

    run_job = staticmethod(fragment_shard)

    def locate(self, asset: str, key: str) -> str:
        return BY_ASSET[asset].place(self.root, key)

    def remove_leftovers(self, asset: str, planned: Mapping[str, PlannedJob]) -> None:
        """Also remove damaged partition records from the table: they would fail every reader of it."""
        super().remove_leftovers(asset, planned)
        self._writer().drop_damaged_records(list(planned))

    def stat_outputs(self, dests: Mapping[str, str]) -> Mapping[str, Mapping[str, Any] | None]:
        """Return the rows that the table holds of each shard. Zero rows are a state, too."""
        if not dests:
            return {}
        stats = self._writer().partition_stats(dests)
        return {key: stats.get(key, {"rows": 0}) if stats is not None else None for key in dests}

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Resolve the table's columns over all shards of the chunk.

        A shard whose schema cannot be read fails alone.
        """
        from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader
        from mm_assets.formats.partitions import Partition

        reader = InterleavedParquetReader(())
        schemas, unreadable = {}, {}
        for job in jobs:
            try:
                schemas[job.key] = reader.open(Partition(job.key, (job.shard.uri,))).schema
            except (OSError, ValueError) as error:
                unreadable[job.key] = ShardResult(job.key, ok=False, error=error_line(error))
        if not schemas:
            return list(unreadable.values())
        planned = self._writer().prepared(list(schemas.values())).planned
        assert planned is not None
        text = schema_to_text(planned)
        return [
            unreadable.get(job.key) or replace(job, options={**job.options, "planned": text}) for job in jobs
        ]

    def publish_chunk(self, results: Sequence[ShardResult]) -> Sequence[ShardResult]:
        damaged = damaged_shards(self.root, LANCE.asset, [result.key for result in results])
        writer = self._writer()
        errors = writer.commit([result.payload for result in results], damaged)
        if damaged and (rows := writer.remove_orphan_rows()):
            dg.AssetExecutionContext.get().log.warning(
                f"{counted(rows, 'row')} that no shard has written: removed from {writer.table_uri}: "
                "the version before still has them"
            )
        return [
            replace(result, payload=None, ok=False, error=errors[result.key])
            if result.key in errors
            else replace(result, payload=None)
            for result in results
        ]

    def _writer(self) -> Any:
        from mm_assets.formats.lance.reader_writer import InterleavedLanceWriter

        return InterleavedLanceWriter(LANCE.place(self.root, ""))


class WebdatasetIOManager(ShardIOManager):
    """Writes a tar per shard; index files of the dataset are derived once per chunk."""

    on_materialize_error: str = Field(default="error", description="error, warn, drop_row or drop_sample.")

    run_job = staticmethod(pack_shard)

    def locate(self, asset: str, key: str) -> str:
        return BY_ASSET[asset].place(self.root, key)

    def publish_chunk(self, results: Sequence[ShardResult]) -> Sequence[ShardResult]:
        self._index()
        return results

    def before_jobs(self, planned: Mapping[str, PlannedJob]) -> None:
        if not planned:
            self.repair_derived()

    def repair_derived(self) -> None:
        """Write the index files again that were changed or removed: nothing else would notice."""
        try:
            self._index()
        except (
            ValueError,
            OSError,
        ) as error:  # a tar that cannot be indexed fails its own shard, not this step
            dg.get_dagster_logger().warning("index files of %s stay as they are: %s", TARS.folder, error)

    def _index(self) -> None:
        from mm_assets.formats.webdataset.writer import TarFolder

        TarFolder(join(self.root, TARS.folder), index=index_folder(self.root, "tars")).finish()


class ArrowCacheIOManager(ShardIOManager):
    """Writes a cache per shard, each in a folder of its own."""

    on_materialize_error: str = Field(default="error", description="error, warn, drop_row or drop_sample.")

    run_job = staticmethod(cache_shard)

    def locate(self, asset: str, key: str) -> str:
        return BY_ASSET[asset].place(self.root, key)

    def remove_leftovers(self, asset: str, planned: Mapping[str, PlannedJob]) -> None:
        """Also remove what killed builders left, in the caches and beside them."""
        super().remove_leftovers(asset, planned)
        if is_remote(self.root):
            return
        from mm_assets.formats.arrow_cache.build import sweep_cache, sweep_folders

        folder = Path(local_path(join(self.root, CACHE.folder)))
        if folder.is_dir():
            sweep_folders(folder)
        for job in planned.values():
            sweep_cache(Path(local_path(job.job.dest)))


class QuarantineIOManager(RawInput):
    """Writes the quarantine records of each shard; no file for a shard that has none."""

    folder: str = Field(
        default=DERIVED_FOLDERS["quarantine"], description="Folder of the records below the storage root."
    )

    run_job = staticmethod(quarantine_shard)

    def locate(self, asset: str, key: str) -> str:
        return join(self.root, self.folder, f"{partition_filename(key)}.parquet")

    def resolve_jobs(self, plan: Plan, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        """Return the jobs with the ledger to read, that of the plan's source, and a digest of its losses.

        A damaged account fails its shard, unless it has no losses: what was lost is unknown, and no record
        may be closed for that.
        """
        ledger, source = Ledger(self.root), plan.source.asset
        records = ledger.records(source, [job.key for job in jobs])
        resolved: list[ShardJob | ShardResult] = []
        for job in jobs:
            try:
                if job.key not in records:
                    raise UnreadableFile(f"{ledger.uri(source, job.key)}: missing")
                losses = digest(ledger.recorded_items(records[job.key]).to_pylist())
            except UnreadableFile as error:
                resolved.append(ShardResult(job.key, ok=False, error=f"{error}; materialize {source} again"))
                continue
            resolved.append(replace(job, options={**job.options, "source_asset": source, "losses": losses}))
        return resolved

    def unchanged_record(self, record: ShardRecord) -> ShardRecord:
        """Return the record with a count of 0 closed records: an earlier run closed them."""
        return replace(record, metadata={**record.metadata, CLOSED_RECORDS: 0})


def with_known_scores(root: str, jobs: Sequence[ShardJob | ShardResult]) -> Sequence[ShardJob | ShardResult]:
    """Return the jobs with what is known of the scores that they replace.

    It is no part of the fingerprint: it says what need not be done, not what comes out.
    """
    found: dict[str, str] = {}
    pending = [job for job in jobs if isinstance(job, ShardJob)]
    if pending:
        records = Ledger(root).records(pending[0].asset, [job.key for job in pending])
        versions = {job.key: job.shard.version for job in pending}
        found = {
            key: record.version
            for key, record in records.items()
            if versions[key] in record.account.get("inputs", {}).values()
        }
    return [
        replace(job, options={**job.options, KNOWN_SCORES: found[job.key]})
        if isinstance(job, ShardJob) and job.key in found
        else job
        for job in jobs
    ]


class ScoresIOManager(ShardIOManager):
    """Writes the measurements of each shard's images."""

    folder: str = Field(
        default=DERIVED_FOLDERS["image_scores"],
        description="Folder of the score files below the storage root.",
    )

    run_job = staticmethod(score_shard)

    def locate(self, asset: str, key: str) -> str:
        return join(self.root, self.folder, f"{partition_filename(key)}.parquet")

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        return with_known_scores(self.root, super().prepare_chunk(jobs))


class SampleScoresIOManager(ScoresIOManager):
    """Writes the measurements of each shard's samples."""

    folder: str = Field(
        default=DERIVED_FOLDERS["sample_scores"],
        description="Folder of the score files below the storage root.",
    )

    run_job = staticmethod(score_samples_of_shard)


IO_MANAGERS: Mapping[str, type[Any]] = {
    "parquet": ParquetIOManager,
    "webdataset": WebdatasetIOManager,
    "lance": LanceIOManager,
    "arrow_cache": ArrowCacheIOManager,
}
