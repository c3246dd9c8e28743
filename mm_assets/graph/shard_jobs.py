"""What workers do to one shard, for each kind of output. Nothing here, or behind it, imports Dagster.

An IO manager names its function (``run_job``). The parent only passes it on, so what a function needs is
imported when it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mm_assets.accounting import (
    CACHE,
    FILES,
    LOST_IDS,
    PUBLISHED,
    REFERRED,
    TARS,
    FileDigest,
    ShardRecord,
    publish_digested,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.formats.parquet import UnreadableFile, place_of_images
from mm_assets.formats.partitions import own_name, relative_root
from mm_assets.formats.raw_shards import files_of
from mm_assets.graph import Check, Shard, ShardJob, ShardResult, blocked_by
from mm_assets.model.schema import schema_from_text
from mm_assets.pool import WorkerFailure
from mm_assets.storage.errors import error_line
from mm_assets.storage.files import join, staged
from mm_assets.storage.stamps import stat_of_written

if TYPE_CHECKING:
    import pyarrow as pa

    from mm_assets.filters.scores import StoredScores

GROUP_MEMBERS = "members"  # in the account of a group: the names of its raw shards
KNOWN_SCORES = (
    "known_scores"  # option of a job: the data version of the scores of the same rows that are there
)
DENY = "deny"  # option of a job, if anything is denied: the hash lists
IMAGES = "images"  # option of a job whose output refers to the images of its source
RAW = "raw"  # side input: the raw shards, whose bytes the quarantine holds
CLOSED_RECORDS = "closed"  # metadata: number of records that the run closed
NOT_FOUND_AGAIN = "published, but not found again"
_MOST_LOST_IDS = 1000  # in a record

K = TypeVar("K", bound="StoredScores[Any, Any, Any]")


@dataclass(frozen=True)
class PlannedJob:
    """A job with what the record of its shard says beside the result.

    Args:
        job: what the worker is to do.
        fingerprint: digest of everything that the output is made from; kept in its record.
        parents: the upstream shards, by asset, for its provenance; without version if not there and not read.
        made_by: digest of code and configuration, part of the fingerprint.
        settings: the same in readable form; no part of the fingerprint.
    """

    job: ShardJob
    fingerprint: str
    parents: Mapping[str, Shard]
    made_by: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.job.key

    def validated(self, answer: ShardResult | WorkerFailure) -> ShardResult:
        """Return the worker's result, or a failure where it breaks the contract of `run_job`."""
        if isinstance(answer, WorkerFailure):
            return ShardResult(self.key, ok=False, error=str(answer), detail=answer.traceback)
        if not isinstance(answer, ShardResult) or answer.key != self.key:
            return ShardResult(self.key, ok=False, error=f"run_job returned {answer!r} for this shard")
        blocked = blocked_by(answer.checks, self.job.blocking)
        if answer.ok and blocked:
            return replace(answer, ok=False, error=f"{blocked}, but run_job published the shard")
        return answer if answer.ok or answer.error else replace(answer, error=blocked or "no reason given")

    def recorded(self, result: ShardResult, stat: Mapping[str, Any] | None, ledger: Ledger) -> ShardResult:
        """Write the account of the published shard; return its result, which has failed if that fails.

        A shard without a record has not landed: the next run could not tell what is there.

        Args:
            stat: the state of its output.
        """
        if result.uri and stat is None:
            error = f"run_job says it published {result.uri}, but nothing is there"
        else:
            try:
                written = ledger.write(self._record(result, stat), result.rows)
                return replace(result, account={}, rows=None, written=written)
            except (OSError, TypeError, ValueError) as fault:
                error = f"published, but its record could not be written: {error_line(fault)}"
        return replace(result, ok=False, error=error)

    def _record(self, result: ShardResult, stat: Mapping[str, Any] | None) -> ShardRecord:
        checks = [dict(vars(check)) for check in result.checks]
        account = {
            **result.account,
            "made_by": self.made_by,
            "settings": self.settings,
            "inputs": {asset: shard.version for asset, shard in self.parents.items() if shard.version},
        }
        return ShardRecord(
            self.job.asset,
            self.key,
            self.fingerprint,
            result.version,
            result.uri,
            stat,
            dict(result.metadata),
            checks,
            account,
        )

    def is_up_to_date(self, record: ShardRecord, required_checks: frozenset[str]) -> bool:
        """Return whether the recorded work is the planned one, and passed its checks.

        Every required check needs a result, and none may forbid to publish.
        """
        return record.fingerprint == self.fingerprint and has_passed(
            record, required_checks, self.job.blocking
        )


def has_passed(record: ShardRecord, required: frozenset[str], blocking: frozenset[str]) -> bool:
    """Return whether a shard has a result of each required check, and none that keeps it back."""
    checks = [Check(**check) for check in record.checks]
    return required <= {check.name for check in checks} and not blocked_by(checks, blocking)


@dataclass(frozen=True)
class RecordedJob:
    """A job whose worker also writes the account of the shard that it has published.

    Args:
        run_job: makes the shard.
    """

    run_job: Callable[[ShardJob], ShardResult]
    planned: PlannedJob

    @property
    def key(self) -> str:
        return self.planned.key


def record_shard(job: RecordedJob) -> ShardResult:
    """Make one shard, and write its account once it is published."""
    planned = job.planned
    result = planned.validated(job.run_job(planned.job))
    if not result.ok:
        return result
    dest = planned.job.dest
    try:
        stat = stat_of_written(dest) if result.uri else None
    except OSError as error:
        return replace(result, ok=False, error=f"{NOT_FOUND_AGAIN}: {error_line(error)}")
    return planned.recorded(result, stat, Ledger(planned.job.root))


def ingest_shard(job: ShardJob) -> ShardResult:
    """Read one raw shard and write it as Parquet.

    What cannot be read is quarantined, unless the policy is ``error``.
    """
    from mm_assets.accounting.contract import Published
    from mm_assets.accounting.erasures import DenyList, aliases_in
    from mm_assets.accounting.survey import scrubbed_survey
    from mm_assets.accounting.survey_store import published_facts, published_to_text
    from mm_assets.formats.parquet.reader_writer import InterleavedParquetWriter
    from mm_assets.formats.raw_shards import RawReader
    from mm_assets.graph.shard_work import convert_shard, reader_arguments
    from mm_assets.model.errors import DUPLICATE_ID
    from mm_assets.view.preview_scores import ShardPictures

    options = job.options
    policy = options["on_materialize_error"]
    deny = DenyList.read(job.root, lists=options[DENY]) if DENY in options else DenyList()
    reader = RawReader(
        (),
        **options["layout"],
        quarantine_errors=policy != "error" or bool(deny),  # an error would name an erased sample
        taken_ids=options["taken_ids"],
        schema_overrides={field.name: field for field in schema_from_text(options["columns"])},
        relative_to=relative_root(options["raw_roots"]),
        roots=options["raw_roots"],
        **reader_arguments(options),
    )
    writer = InterleavedParquetWriter(job.dest, on_materialize_error=policy, roots=options["raw_roots"])
    first = deny.step(policy, options["raw_roots"]) if deny else None
    result, report = convert_shard(
        job, reader, writer, max_loss=options["max_loss"], observer=ShardPictures, deny=first
    )
    if report is not None and (members := members_of(job)):
        result = replace(result, account={**result.account, GROUP_MEMBERS: members})
    if report is not None:
        taken = set(options["taken_ids"])
        aliases = aliases_in(report.losses)
        lost = aliases | {
            loss.sample_id
            for loss in report.losses
            if loss.kind != DUPLICATE_ID and loss.modality == "metadata" and loss.sample_id is not None
        }
        # What another shard keeps has not been read this time: it is as it was.
        if listed := sorted(lost.union(taken.intersection(options[LOST_IDS])))[:_MOST_LOST_IDS]:
            result = replace(result, account={**result.account, LOST_IDS: listed})
        store = SurveyStore(job.root)
        survey = store.read(job.key, job.shard.version)
        if survey is not None and deny:
            scrubbed = scrubbed_survey(job.key, survey, deny, aliases)
            if scrubbed != survey:  # only its rows told that a sample is erased
                store.write(job.key, scrubbed)
                survey = scrubbed
        if survey is not None:
            absent = lost | taken
            ids = [sample_id for sample_id in survey.sample_ids.to_pylist() if sample_id not in absent]
            published = Published(report.schema, survey.columns)
            result = replace(
                result,
                account={**result.account, PUBLISHED: published_to_text(published)},
                payload=published_facts(published, ids),
            )
    return result


def members_of(job: ShardJob) -> list[str]:
    """Return the names of the raw shards in a group; none if the partition is one raw shard."""
    names = (own_name(job.key, file) for file in files_of(job.shard.uri))
    return [name for name in names if name is not None]


def rewrite_shard(job: ShardJob) -> ShardResult:
    """Read one curated shard, apply the steps, write it as Parquet."""
    from mm_assets.formats.parquet.reader_writer import (
        ImagesOfSource,
        InterleavedParquetReader,
        InterleavedParquetWriter,
    )
    from mm_assets.graph.shard_work import convert_shard, reader_arguments
    from mm_assets.view.preview_scores import ShardPictures

    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    writer = InterleavedParquetWriter(
        job.dest, on_materialize_error=job.options["on_materialize_error"], roots=()
    )
    # An asset that takes over all rows of its source shows what it shows.
    observer = ShardPictures if job.steps else None
    if IMAGES not in job.options or job.shard.uri != place_of_images(job.dest):
        return convert_shard(job, reader, writer, job.shard.version, observer=observer)[0]
    images = ImagesOfSource("/".join(job.shard.uri.rsplit("/", 2)[-2:]))
    job = replace(job, steps=(images, *job.steps))
    result, _ = convert_shard(job, reader, writer.referring_to(images), job.shard.version, observer=observer)
    return replace(result, metadata={**result.metadata, REFERRED: images.referred}) if result.ok else result


def fragment_shard(job: ShardJob) -> ShardResult:
    """Write one filtered shard as fragments of the table; they are invisible before the commit.

    The payload is the writer's report.
    """
    from mm_assets.formats.lance.reader_writer import InterleavedLanceWriter
    from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader
    from mm_assets.graph.shard_work import convert_shard, reader_arguments

    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    writer = InterleavedLanceWriter(
        job.dest, on_materialize_error=job.options["on_materialize_error"], roots=()
    )
    planned = schema_from_text(job.options["planned"])
    result, report = convert_shard(job, reader, writer.planned_as(planned), job.shard.version)
    return replace(result, payload=report)


def pack_shard(job: ShardJob) -> ShardResult:
    """Write one filtered shard as a tar into its folder."""
    from mm_assets.graph.shard_work import convert_parquet

    return convert_parquet(job, TARS.kind)


def cache_shard(job: ShardJob) -> ShardResult:
    """Write one filtered shard as a cache into its folder."""
    from mm_assets.graph.shard_work import convert_parquet

    return convert_parquet(job, CACHE.kind)


def quarantine_shard(job: ShardJob) -> ShardResult:
    """Write the open quarantine records of one shard.

    Records of items that are not faulty any more are closed. Without open records the file is removed.
    """
    from mm_assets.accounting.erasures import DenyList
    from mm_assets.accounting.quarantine import names_of, publish_quarantine, quarantine_table, record_names
    from mm_assets.model.digest import ContentDigest

    previous = record_names(job.dest)
    losses = Ledger(job.root).items(job.options["source_asset"], job.key)
    options = job.options
    files = files_of(job.side_inputs[RAW].uri)
    deny = DenyList.read(job.root, lists=options[DENY]) if DENY in options else None
    records = quarantine_table(losses, files, options["raw_roots"], deny=deny)
    written = publish_quarantine(job.dest, records, is_published=previous is not None)
    content = ContentDigest()
    content.observe(
        records.drop_columns(["raw"])
    )  # locators and version of the raw shard determine the bytes
    kinds = dict(Counter(records.column("kind").to_pylist()))
    first = (
        records.select(["sample_id", "position", "kind", "message", "source_uri", "byte_offset"])
        .slice(0, 20)
        .to_pylist()
    )
    metadata = {
        "dagster/partition_row_count": len(records),
        "records": len(records),
        CLOSED_RECORDS: len((previous or frozenset()) - names_of(records)),
        "kinds": {"json": kinds},
        "first": {"json": first},
        "bytes": written["bytes"] if written else 0,
    }
    uri = job.dest if written else ""
    return ShardResult(
        job.key,
        ok=True,
        uri=uri,
        version=content.hexdigest(),
        metadata=metadata,
        checks=tuple(check.outcome(records) for check in job.checks),
        account=_account_of(job, written),
    )


def _account_of(job: ShardJob, written: FileDigest | None) -> dict[str, Any]:
    """Return the account of an output that is a small file; None: there is none."""
    return {FILES: {job.dest.removeprefix(join(job.root, "")): written}}


def score_shard(job: ShardJob) -> ShardResult:
    """Measure the images of one curated shard: their headers, and what the steps of the job (measures) say.

    What an earlier version of the file has of the same images is taken over.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from mm_assets.accounting import Balance, account_table
    from mm_assets.filters.measure import digest_of_scores, not_derived
    from mm_assets.filters.readable import COLUMNS, DimensionTally
    from mm_assets.filters.scores import ImageScores, score_table
    from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader
    from mm_assets.formats.partitions import Partition
    from mm_assets.graph import ScoredShard
    from mm_assets.graph.shard_work import reader_arguments

    known = _known_scores(job, ImageScores)
    missing = list(job.steps) if known is None else known.missing(job.steps)
    columns = [*COLUMNS, "materialize_error"]
    if known is None or not_derived(missing):
        columns.append("binary_content")
    if any(measure.needs_texts for measure in missing):
        columns.append("text_content")
    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    _, tables = reader.project(Partition(job.key, (job.shard.uri,)), columns)
    dimensions = DimensionTally()
    parts = [ImageScores.schema(job.steps, known).empty_table()]
    images = 0
    for table in tables:
        images += pc.sum(pc.equal(table.column("modality"), "image")).as_py() or 0
        parts.append(score_table(table, job.steps, known))
        dimensions.observe(table, ImageScores(parts[-1]))
    scores = pa.concat_tables(parts)
    balance = Balance(images, len(scores), {}, {})
    errors = len(scores) - scores.column("error").null_count
    checks = tuple(check.outcome(ScoredShard(dimensions, balance)) for check in job.checks)
    if (reason := blocked_by(checks, job.blocking)) is not None:
        return ShardResult(job.key, ok=False, checks=checks, error=reason)
    metadata = {
        "dagster/partition_row_count": len(scores),
        "images": len(scores),
        "measured": ", ".join(measure.name for measure in missing) or "headers",
        "formats": {
            "json": {
                e["values"] or "unreadable": e["counts"]
                for e in pc.value_counts(scores.column("format")).to_pylist()
            }
        },
        "unreadable": errors,
    }
    rows = account_table(job.asset, job.key, balance)
    return _published_scores(job, scores, digest_of_scores(scores), metadata, checks, rows)


def score_samples_of_shard(job: ShardJob) -> ShardResult:
    """Measure the samples of one curated shard: their counts, and what the steps of the job (measures) say.

    What an earlier version of the file has of the same samples is taken over. No image is read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from mm_assets.filters.measure import digest_of_scores
    from mm_assets.filters.scores import COLUMNS, SampleScores, score_samples
    from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader
    from mm_assets.formats.partitions import Partition
    from mm_assets.graph.shard_work import reader_arguments

    known = _known_scores(job, SampleScores)
    missing = list(job.steps) if known is None else known.missing(job.steps)
    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    _, tables = reader.project(Partition(job.key, (job.shard.uri,)), COLUMNS)
    parts = [SampleScores.schema(job.steps, known).empty_table()]
    parts += [score_samples(table, job.steps, known) for table in tables]
    scores = pa.concat_tables(parts)
    metadata = {
        "dagster/partition_row_count": len(scores),
        "samples": len(scores),
        "words": pc.sum(scores.column("words")).as_py() or 0,
        "measured": ", ".join(measure.name for measure in missing) or "counts",
    }
    return _published_scores(job, scores, digest_of_scores(scores), metadata)


def _known_scores(job: ShardJob, kind: type[K]) -> K | None:
    """Return the scores of the same rows that are there; None where there are none, or others."""
    from mm_assets.model.errors import warn_user

    if KNOWN_SCORES not in job.options:
        return None
    try:
        return kind.read(job.dest, job.options[KNOWN_SCORES])
    except FileNotFoundError:
        return None
    except UnreadableFile as error:
        warn_user(f"{error}: everything is measured again")
        return None


def _published_scores(
    job: ShardJob,
    scores: pa.Table,
    version: str,
    metadata: Mapping[str, Any],
    checks: tuple[Check, ...] = (),
    rows: pa.Table | None = None,
) -> ShardResult:
    """Publish the scores of a shard and return the result of its job.

    Args:
        version: digest of the scores.
        metadata: what is reported beside bytes and columns.
        rows: rows of the account.
    """
    import pyarrow.parquet as pq

    from mm_assets.graph.shard_work import column_schema

    with staged(job.dest) as file:
        pq.write_table(scores, file.path, compression="zstd")
        written = publish_digested(file)
    return ShardResult(
        job.key,
        ok=True,
        uri=job.dest,
        version=version,
        metadata={
            **metadata,
            "bytes": written["bytes"],
            "dagster/column_schema": {"table_schema": column_schema(scores.schema)},
        },
        checks=checks,
        account=_account_of(job, written),
        rows=rows,
    )
