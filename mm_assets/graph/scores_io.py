"""IO managers of image scores and of sample scores: one small Parquet file per shard.

What is measured is not measured again: `with_known_scores` gives workers the scores that a shard has already,
as far as they are of the same rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.record import DERIVED_FOLDERS
from mm_assets.formats.names import partition_filename
from mm_assets.graph.io_manager import ShardIOManager
from mm_assets.graph.messages import Check, ShardJob, ShardResult, blocked_by
from mm_assets.storage.files import join

if TYPE_CHECKING:
    import pyarrow as pa

    from mm_assets.filters.scores import StoredScores


K = TypeVar("K", bound="StoredScores[Any, Any, Any]")

_KNOWN = "known_scores"  # option of a job: the data version of the scores of the same rows that are there


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
        replace(job, options={**job.options, _KNOWN: found[job.key]})
        if isinstance(job, ShardJob) and job.key in found
        else job
        for job in jobs
    ]


def known_scores(job: ShardJob, kind: "type[K]") -> "K | None":
    """Return the scores of the same rows that are there; None where there are none, or others."""
    from mm_assets.formats.parquet.files import UnreadableFile
    from mm_assets.model.errors import warn_user

    if _KNOWN not in job.options:
        return None
    try:
        return kind.read(job.dest, job.options[_KNOWN])
    except FileNotFoundError:
        return None
    except UnreadableFile as error:
        warn_user(f"{error}: everything is measured again")
        return None


def published_scores(
    job: ShardJob,
    scores: "pa.Table",
    version: str,
    metadata: Mapping[str, Any],
    checks: tuple[Check, ...] = (),
    rows: "pa.Table | None" = None,
) -> ShardResult:
    """Publish the scores of a shard and return the result of its job.

    Args:
        version: digest of the scores.
        metadata: what is reported beside bytes and columns.
        rows: rows of the account.
    """
    from mm_assets.accounting.record import FILES, digest_files
    from mm_assets.formats.parquet.files import publish_table
    from mm_assets.graph.shard_work import column_schema

    nbytes = publish_table(job.dest, scores)
    return ShardResult(
        job.key,
        ok=True,
        uri=job.dest,
        version=version,
        metadata={
            **metadata,
            "bytes": nbytes,
            "dagster/column_schema": {"table_schema": column_schema(scores.schema)},
        },
        checks=checks,
        account={FILES: digest_files(job.root, [job.dest])},
        rows=rows,
    )


def score_shard(job: ShardJob) -> ShardResult:
    """Measure the images of one curated shard: their headers, and what the steps of the job (measures) say.

    What an earlier version of the file has of the same images is taken over.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from mm_assets.accounting.ledger import Balance, account_table
    from mm_assets.filters.measure import digest_of_scores
    from mm_assets.filters.readable import COLUMNS, DimensionTally
    from mm_assets.filters.scores import ImageScores, score_table
    from mm_assets.formats.parquet.reader_writer import InterleavedParquetReader
    from mm_assets.formats.partitions import Partition
    from mm_assets.graph.checks import ScoredShard
    from mm_assets.graph.shard_work import reader_arguments

    known = known_scores(job, ImageScores)
    missing = list(job.steps) if known is None else known.missing(job.steps)
    columns = [*COLUMNS, "materialize_error"]
    if known is None or missing:
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
    return published_scores(job, scores, digest_of_scores(scores), metadata, checks, rows)


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

    known = known_scores(job, SampleScores)
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
    return published_scores(job, scores, digest_of_scores(scores), metadata)


class SampleScoresIOManager(ScoresIOManager):
    """Writes the measurements of each shard's samples."""

    folder: str = Field(
        default=DERIVED_FOLDERS["sample_scores"],
        description="Folder of the score files below the storage root.",
    )

    run_job = staticmethod(score_samples_of_shard)
