"""IO manager of sample scores: one small Parquet file per shard."""

from collections.abc import Sequence

from pydantic import Field

from mm_assets.accounting.outputs import DERIVED_FOLDERS
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import join
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.known_scores import with_known_scores
from mm_assets.io_managers.shards import ShardJob, ShardResult


def score_samples_of_shard(job: ShardJob) -> ShardResult:
    """Measure the samples of one curated shard: their counts, and what the steps of the job (measures) say.

    What an earlier version of the file has of the same samples is taken over. No image is read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from mm_assets.filters.measured_columns import digest_of_scores
    from mm_assets.filters.sample_scores import COLUMNS, SampleScores, sample_scores_schema, score_samples
    from mm_assets.formats.parquet import InterleavedParquetReader
    from mm_assets.formats.partitions import Partition
    from mm_assets.io_managers.known_scores import known_scores, published_scores
    from mm_assets.io_managers.shard_work import reader_arguments

    known = known_scores(job, SampleScores)
    missing = list(job.steps) if known is None else known.missing(job.steps)
    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    _, tables = reader.project(Partition(job.key, (job.shard.uri,)), COLUMNS)
    parts = [sample_scores_schema(job.steps, known).empty_table()]
    parts += [score_samples(table, job.steps, known) for table in tables]
    scores = pa.concat_tables(parts)
    metadata = {
        "dagster/partition_row_count": len(scores),
        "samples": len(scores),
        "words": pc.sum(scores.column("words")).as_py() or 0,
        "measured": ", ".join(measure.name for measure in missing) or "counts",
    }
    return published_scores(job, scores, digest_of_scores(scores), metadata)


class SampleScoresIOManager(ShardIOManager):
    """Writes the measurements of each shard's samples."""

    folder: str = Field(
        default=DERIVED_FOLDERS["sample_scores"],
        description="Folder of the score files below the storage root.",
    )

    run_job = staticmethod(score_samples_of_shard)

    def locate(self, asset: str, key: str) -> str:
        return join(self.root, self.folder, f"{partition_filename(key)}.parquet")

    def prepare_chunk(self, jobs: Sequence[ShardJob]) -> Sequence[ShardJob | ShardResult]:
        return with_known_scores(self.root, super().prepare_chunk(jobs))
