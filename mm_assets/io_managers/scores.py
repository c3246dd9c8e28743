"""IO manager of image scores: one small Parquet file per shard."""

from collections.abc import Sequence

from pydantic import Field

from mm_assets.accounting.outputs import DERIVED_FOLDERS
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import join
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.known_scores import with_known_scores
from mm_assets.io_managers.shards import ShardJob, ShardResult, blocked_by


def score_shard(job: ShardJob) -> ShardResult:
    """Measure the images of one curated shard: their headers, and what the steps of the job (measures) say.

    What an earlier version of the file has of the same images is taken over.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from mm_assets.accounting.ledger import Balance, Ledger
    from mm_assets.filters.dimensions import COLUMNS, DimensionTally
    from mm_assets.filters.image_scores import ImageScores, score_table, scores_schema
    from mm_assets.filters.measured_columns import digest_of_scores
    from mm_assets.formats.parquet import InterleavedParquetReader
    from mm_assets.formats.partitions import Partition
    from mm_assets.io_managers.check_results import ScoredShard
    from mm_assets.io_managers.known_scores import known_scores, published_scores
    from mm_assets.io_managers.shard_work import reader_arguments

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
    parts = [scores_schema(job.steps, known).empty_table()]
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
    ledger = Ledger(job.root)
    ledger.write(job.asset, job.key, (balance, ()))
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
    return published_scores(
        job, scores, digest_of_scores(scores), metadata, checks, ledger.uris(job.asset, job.key)
    )


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
