"""Image scores: one small Parquet file per shard."""

from pydantic import Field

from mm_assets.formats.storage import join
from mm_assets.formats.webdataset.keys import partition_filename
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.shards import Check, Done, Job


def score_shard(job: Job) -> Done:
    """Measure the images of one curated shard from their headers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from mm_assets.filters.image_scores import SCORES_SCHEMA, score_table
    from mm_assets.formats.parquet import InterleavedParquetReader
    from mm_assets.formats.partitions import Partition
    from mm_assets.formats.tables import publish_table
    from mm_assets.interleaved.digest import ContentDigest
    from mm_assets.io_managers.shard_work import column_schema, reader_arguments

    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    columns = ["sample_id", "position", "modality", "binary_content", "materialize_error"]
    _, tables = reader.project(Partition(job.key, (job.shard.uri,)), columns)
    scores = pa.concat_tables([SCORES_SCHEMA.empty_table(), *(score_table(table) for table in tables)])
    digest = ContentDigest()
    digest.observe(scores)
    errors = len(scores) - scores.column("error").null_count
    nbytes = publish_table(job.dest, scores)
    metadata = {
        "dagster/partition_row_count": len(scores),
        "images": len(scores),
        "bytes": nbytes,
        "formats": {"json": {e["values"] or "unreadable": e["counts"] for e in pc.value_counts(scores.column("format")).to_pylist()}},
        "unreadable": errors,
        "dagster/column_schema": {"table_schema": column_schema(SCORES_SCHEMA)},
    }
    check = Check("images_readable", errors == 0, "WARN", {"unreadable": errors, "images": len(scores)})
    return Done(job.key, ok=True, uri=job.dest, version=digest.hexdigest(), metadata=metadata, checks=(check,))


class ScoresIOManager(ShardIOManager):
    """Writes the measurements of each shard's images."""

    folder: str = Field(default="scores", description="Folder of the score files below the storage root.")

    run_job = staticmethod(score_shard)

    def locate(self, asset: str, key: str) -> str:
        return join(self.root, self.folder, f"{partition_filename(key)}.parquet")
