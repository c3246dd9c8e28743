"""IO manager of Arrow caches: Parquet in, memory-mapped Arrow files out."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from mm_assets.accounting.outputs import BY_ASSET, CACHE
from mm_assets.formats.storage import is_remote, join, local_path
from mm_assets.io_managers.base import ShardIOManager
from mm_assets.io_managers.planned_jobs import PlannedJob
from mm_assets.io_managers.shards import ShardJob, ShardResult


def cache_shard(job: ShardJob) -> ShardResult:
    """Write one filtered shard as a cache into its folder."""
    from mm_assets.io_managers.shard_work import convert_parquet

    return convert_parquet(job, CACHE.kind)


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
        from mm_assets.formats.arrow_cache.generation import sweep_cache, sweep_folders

        folder = Path(local_path(join(self.root, CACHE.folder)))
        if folder.is_dir():
            sweep_folders(folder)
        for job in planned.values():
            sweep_cache(Path(local_path(job.job.dest)))


IO_MANAGER = ArrowCacheIOManager
