"""Runs of all assets in this process, for the raw shards and with the instance of the environment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import dagster as dg


class AssetRuns:
    """Runs of all assets, one after the other; CPU seconds of this process and wall seconds of each."""

    def __init__(self) -> None:
        import dagster as dg

        from mm_assets.definitions import defs
        from mm_assets.graph.dagster_internals import SHARDS
        from mm_assets.graph.resources import resources_from_environment

        self._job = defs.resolve_job_def("all_assets")
        self._partitions = str(SHARDS.name)
        self.instance = dg.DagsterInstance.get()
        self.keys = list(resources_from_environment()["raw"].listing())
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def add_partitions(self, keys: list[str]) -> None:
        self.instance.add_dynamic_partitions(self._partitions, keys)

    def materialize(self, some: list[str]) -> dg.ExecuteInProcessResult:
        """Make all assets of neighbours in the list of partitions."""
        tags = {
            "dagster/asset_partition_range_start": some[0],
            "dagster/asset_partition_range_end": some[-1],
        }
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        cpu, wall = time.process_time(), time.monotonic()
        result = self._job.execute_in_process(
            instance=self.instance, tags=tags, raise_on_error=False, run_config=quiet
        )
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.monotonic() - wall)
        if not result.success:
            raise RuntimeError(f"run {result.run_id} failed")
        return result


def database_bytes(instance: Any, url: str | None = None) -> int:
    """The size of the event log: of the Postgres database at ``url``, else of the files of SQLite."""
    import sqlalchemy as db

    if url is None:
        instance.event_log_storage.dispose()  # what is in the write-ahead log goes into the files
        folder = Path(instance.root_directory, "history")
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with db.create_engine(url, poolclass=db.NullPool).connect() as connection:
        return int(connection.execute(db.text("SELECT pg_database_size(current_database())")).scalar_one())
