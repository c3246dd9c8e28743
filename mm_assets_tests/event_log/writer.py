"""A process that logs events of a run through our event log: for each shard a materialization and a check.

``python -m mm_assets_tests.event_log.writer HOME URL RUN SHARDS SECONDS``: URL "-" for SQLite; prints each
shard and the time once its events are logged, and waits so many seconds in between.
"""

from __future__ import annotations

import sys
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


def main() -> None:
    home, url, run_id, shards, seconds = sys.argv[1:]
    with open_instance(Path(home), OURS, None if url == "-" else url) as instance:
        for number in range(int(shards)):
            shard = f"{run_id}-{number}"
            for event in events_of_shard(run_id, shard):
                instance.event_log_storage.store_event(event)
            print(shard, time.time(), flush=True)
            time.sleep(float(seconds))


if __name__ == "__main__":
    main()
