"""A process that materializes assets of the real graph when told to: a line of JSON in for each run, a line
about it out.

It spares tests that do many runs the seconds that importing Dagster takes. Configured by the environment as
any run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from mm_assets.graph.io_manager import LANDED
from mm_assets.graph.shard_jobs import RecordedJob
from mm_assets.pool import WorkerFailure
from mm_assets.pool.workers import WorkerPool


def serve() -> None:
    """Answer ``[asset, …]`` with ``{"ok": bool, "died": [[job function, shard], …], "failed": [check, …],
    "errors": [text, …]}``.
    """
    warnings.simplefilter("ignore", dg.BetaWarning)
    from mm_assets.definitions import defs
    from mm_assets.graph.dagster_internals import SHARDS
    from mm_assets.graph.resources import resources_from_environment

    answers = sys.stdout
    job = defs.resolve_job_def("all_assets")
    with contextlib.redirect_stdout(sys.stderr), dg.DagsterInstance.get() as instance, _deaths() as died:
        keys = list(resources_from_environment()["raw"].listing())
        instance.add_dynamic_partitions(str(SHARDS.name), keys)
        tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            died.clear()
            result = job.execute_in_process(
                instance=instance,
                tags=tags,
                asset_selection=[dg.AssetKey(name) for name in json.loads(line)],
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
            of_shards = [
                e
                for e in result.get_asset_check_evaluations()
                if e.partition is not None or e.check_name == LANDED
            ]
            failed = [
                f"{e.asset_key.to_user_string()}.{e.check_name} {e.partition}"
                for e in of_shards
                if not e.passed
            ]
            answer = {
                "ok": result.success,
                "died": died,
                "failed": failed,
                "errors": _errors(instance, result.run_id),
            }
            print(json.dumps(answer), file=answers, flush=True)


def _errors(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    entries = [record.event_log_entry for record in instance.get_records_for_run(run_id).records]
    return [entry.user_message for entry in entries if int(entry.level) >= logging.ERROR]


@contextlib.contextmanager
def _deaths() -> Iterator[list[tuple[str, str]]]:
    """Function and shard of every job that a worker died of."""
    died: list[tuple[str, str]] = []
    plain = WorkerPool.map

    def noting(self: WorkerPool, fn: Callable[[Any], Any], jobs: Any) -> Any:
        for job, answer in plain(self, fn, jobs):
            if isinstance(answer, WorkerFailure) and answer.type == "WorkerDied":
                done = job.run_job if isinstance(job, RecordedJob) else fn
                died.append((done.__name__, job.key))
            yield job, answer

    WorkerPool.map = noting  # type: ignore[method-assign]
    try:
        yield died
    finally:
        WorkerPool.map = plain  # type: ignore[method-assign]


if __name__ == "__main__":
    serve()
