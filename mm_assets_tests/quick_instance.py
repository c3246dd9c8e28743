"""The Dagster instance of most tests that run the graph."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from dagster._core.instance import InstanceType
from dagster._core.launcher.sync_in_memory_run_launcher import SyncInMemoryRunLauncher
from dagster._core.run_coordinator import DefaultRunCoordinator
from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager
from dagster._core.storage.root import LocalArtifactStorage
from dagster._core.storage.runs import InMemoryRunStorage

from mm_assets.event_log.sqlite import BatchedSqliteEventLogStorage


def quick_instance(home: Path) -> dg.DagsterInstance:
    """As `DagsterInstance.ephemeral`, but with our event log, below ``home``.

    A run takes a seventh less CPU than with Dagster's event log in memory, which takes a quarter of what
    Dagster's files take.
    """
    return dg.DagsterInstance(
        instance_type=InstanceType.EPHEMERAL,
        local_artifact_storage=LocalArtifactStorage(str(home)),
        run_storage=InMemoryRunStorage(),
        event_storage=BatchedSqliteEventLogStorage(str(home / "history" / "runs")),
        compute_log_manager=NoOpComputeLogManager(),
        run_coordinator=DefaultRunCoordinator(),
        run_launcher=SyncInMemoryRunLauncher(),
    )
