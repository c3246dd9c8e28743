"""IO manager of image scores: one small Parquet file per shard."""

from pydantic import Field

from mm_assets.accounting.outputs import DERIVED_FOLDERS
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import join
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.shards import ShardJob, ShardResult, blocked_by


def score_shard(job: ShardJob) -> ShardResult:
    """Measure the images of one curated shard from their headers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from mm_assets.accounting.file_digests import FILES, digest_files
    from mm_assets.accounting.ledger import Balance, Ledger
    from mm_assets.filters.dimensions import COLUMNS, DimensionTally
    from mm_assets.filters.image_scores import SCORES_SCHEMA, ImageScores, digest_of_scores, score_table
    from mm_assets.formats.parquet import InterleavedParquetReader
    from mm_assets.formats.parquet_file import publish_table
    from mm_assets.formats.partitions import Partition
    from mm_assets.io_managers.check_results import ScoredShard
    from mm_assets.io_managers.shard_work import column_schema, reader_arguments

    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    _, tables = reader.project(
        Partition(job.key, (job.shard.uri,)), [*COLUMNS, "binary_content", "materialize_error"]
    )
    dimensions = DimensionTally()
    parts = [SCORES_SCHEMA.empty_table()]
    images = 0
    for table in tables:
        images += pc.sum(pc.equal(table.column("modality"), "image")).as_py() or 0
        parts.append(score_table(table))
        dimensions.observe(table, ImageScores(parts[-1]))
    scores = pa.concat_tables(parts)
    balance = Balance(images, len(scores), {}, {})
    errors = len(scores) - scores.column("error").null_count
    checks = tuple(check.outcome(ScoredShard(dimensions, balance)) for check in job.checks)
    if (reason := blocked_by(checks, job.blocking)) is not None:
        return ShardResult(job.key, ok=False, checks=checks, error=reason)
    nbytes = publish_table(job.dest, scores)
    ledger = Ledger(job.root)
    ledger.write(job.asset, job.key, (balance, ()))
    files = digest_files(job.root, [job.dest, *ledger.uris(job.asset, job.key)])
    metadata = {
        "dagster/partition_row_count": len(scores),
        "images": len(scores),
        "bytes": nbytes,
        "formats": {
            "json": {
                e["values"] or "unreadable": e["counts"]
                for e in pc.value_counts(scores.column("format")).to_pylist()
            }
        },
        "unreadable": errors,
        "dagster/column_schema": {"table_schema": column_schema(SCORES_SCHEMA)},
    }
    return ShardResult(
        job.key,
        ok=True,
        uri=job.dest,
        version=digest_of_scores(scores),
        metadata=metadata,
        checks=checks,
        account={FILES: files},
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
