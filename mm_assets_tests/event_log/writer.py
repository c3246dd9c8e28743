"""What a process logs of a run through our event log: for each shard a materialization and a check."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluation
from dagster._core.events import DagsterEvent, StepMaterializationData
from dagster._core.events.log import EventLogEntry

from mm_assets_tests.event_log.databases import OURS, open_instance

KEY = dg.AssetKey("asset")
CHECK = dg.AssetCheckKey(KEY, "sound")


def events_of_shard(run_id: str, shard: str, passed: bool = True) -> Iterator[EventLogEntry]:
    """A materialization and an evaluation, as a step logs them."""
    made = dg.AssetMaterialization(KEY, partition=shard, tags={"dagster/data_version": f"{run_id} {shard}"})
    yield _entry(run_id, dg.DagsterEventType.ASSET_MATERIALIZATION, StepMaterializationData(made))
    evaluation = AssetCheckEvaluation(KEY, CHECK.name, passed, partition=shard)
    yield _entry(run_id, dg.DagsterEventType.ASSET_CHECK_EVALUATION, evaluation)


def _entry(run_id: str, kind: dg.DagsterEventType, data: object) -> EventLogEntry:
    event = DagsterEvent(kind.value, "job", event_specific_data=data, message="told", step_key="step")  # type: ignore[arg-type]
    return EventLogEntry(None, 10, "told", run_id, time.time(), "step", "job", event)


def write(home: Path, url: str | None, run_id: str, shards: int, seconds: float, told: int) -> None:
    """Log events of so many shards, so many seconds apart; each shard and the time go to a descriptor."""
    with open_instance(home, OURS, url) as instance:
        for number in range(shards):
            shard = f"{run_id}-{number}"
            for event in events_of_shard(run_id, shard):
                instance.event_log_storage.store_event(event)
            os.write(told, f"{shard} {time.time()}\n".encode())
            time.sleep(seconds)
