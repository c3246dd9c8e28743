"""IO manager of WebDataset tars: Parquet in, tars and the index files of all clients out."""

from collections.abc import Mapping, Sequence

import dagster as dg
from pydantic import Field

from mm_assets.accounting.outputs import BY_ASSET, TARS
from mm_assets.accounting.records import index_folder
from mm_assets.formats.storage import join
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.planned_jobs import PlannedJob
from mm_assets.io_managers.shards import ShardJob, ShardResult


def pack_shard(job: ShardJob) -> ShardResult:
    """Write one filtered shard as a tar into its folder."""
    from mm_assets.io_managers.shard_work import convert_parquet

    return convert_parquet(job, TARS.kind)


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
        from mm_assets.formats.webdataset.tar_folder import TarFolder

        TarFolder(join(self.root, TARS.folder), index=index_folder(self.root, "tars")).finish()


IO_MANAGER = WebdatasetIOManager
