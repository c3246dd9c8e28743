"""Raw shards or Parquet in, interleaved Parquet out."""

from pydantic import Field

from mm_assets.formats.partitions import parse_bytes
from mm_assets.formats.storage import is_remote, join
from mm_assets.formats.webdataset.keys import partition_filename
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.raw_input import RawInput
from mm_assets.io_managers.shards import Done, Job


def ingest_shard(job: Job) -> Done:
    """Read one raw shard and write it as Parquet."""
    from mm_assets.formats.parquet import InterleavedParquetWriter
    from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader
    from mm_assets.io_managers.shard_work import convert_shard, reader_arguments

    options = job.options
    local_root = next((root for root in options["raw_roots"] if not is_remote(root)), None)
    reader = InterleavedWebdatasetReader(
        (),
        sample_id_field=options["sample_id_field"] or None,
        per_image_fields=options["per_image_fields"],
        per_text_fields=options["per_text_fields"],
        relative_to=local_root,
        **reader_arguments(options),
    )
    writer = InterleavedParquetWriter(job.dest, on_materialize_error=options["on_materialize_error"], roots=options["raw_roots"])
    return convert_shard(job, reader, writer)[0]


def rewrite_shard(job: Job) -> Done:
    """Read one curated shard, apply the steps, write it as Parquet."""
    from mm_assets.formats.parquet import InterleavedParquetReader, InterleavedParquetWriter
    from mm_assets.io_managers.shard_work import convert_shard, reader_arguments

    reader = InterleavedParquetReader((), **reader_arguments(job.options))
    writer = InterleavedParquetWriter(job.dest, on_materialize_error=job.options["on_materialize_error"], roots=())
    return convert_shard(job, reader, writer)[0]


class _ParquetFolder(ShardIOManager):
    folder: str = Field(description="Folder of the Parquet files below the storage root.")
    on_materialize_error: str = Field(default="error", description="error, warn, drop_row or drop_sample.")
    max_batch_bytes: str = Field(default="16MiB", description="Bytes of one batch in a worker's memory.")

    def locate(self, asset: str, key: str) -> str:
        return join(self.root, self.folder, f"{partition_filename(key)}.parquet")

    def options(self) -> dict[str, object]:
        return {**super().options(), "max_batch_bytes": parse_bytes(self.max_batch_bytes)}


class IngestIOManager(RawInput, _ParquetFolder):
    """Writes curated Parquet from raw shards."""

    folder: str = "curated"
    sample_id_field: str = Field(default="", description="Json field with the sample id; empty: see the reader's default.")
    per_image_fields: list[str] = Field(default=[], description="Json lists with one value per image.")
    per_text_fields: list[str] = Field(default=[], description="Json lists with one value per text.")

    run_job = staticmethod(ingest_shard)


class ParquetIOManager(_ParquetFolder):
    """Writes Parquet from Parquet."""

    folder: str = "filtered"

    run_job = staticmethod(rewrite_shard)
