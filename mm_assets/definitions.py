"""The code location: assets, their checks, jobs, sensors and resources."""

import atexit
import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from mm_assets.model.errors import explained

try:
    import dagster as dg
except ImportError as error:
    raise explained(error) from None

from mm_assets.accounting import statistics_folder
from mm_assets.automation.alerts.tick import alerts_sensor
from mm_assets.automation.sensors import (
    JOBS,
    automation_sensor,
    inventory_checks,
    new_shards,
    report_sensor,
    schedules,
)
from mm_assets.automation.whole_set import training_set, with_verdicts
from mm_assets.filters.duplicates import duplicate_filters
from mm_assets.graph.assets import (
    arrow_cache,
    curated_parquet,
    described,
    duplicates,
    filtered_parquet,
    final_tars,
    image_scores,
    lance_table,
    landed_checks,
    quarantine,
    raw_shards,
    report,
    sample_scores,
    with_settings,
)
from mm_assets.graph.dagster_internals import set_console_level
from mm_assets.graph.proof import zero_loss_checks
from mm_assets.graph.raw import raw_gate_checks
from mm_assets.graph.resources import resources_from_environment
from mm_assets.pool import WORKER_ENVIRONMENT
from mm_assets.pool.workers import fork_server
from mm_assets.settings import Settings
from mm_assets.settings_file import load_plugins

SHARDED_ASSETS = [
    curated_parquet,
    quarantine,
    image_scores,
    sample_scores,
    filtered_parquet,
    final_tars,
    lance_table,
    arrow_cache,
]


def build_definitions(resources: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The definitions for the environment as it is now.

    Args:
        resources: what `resources_from_environment` has just returned, if it was called.
    """
    settings, resources = Settings.load(), resources or resources_from_environment()
    filters, root = resources["bounds"].active(), resources["maintained"].root
    found = [duplicates] if duplicate_filters(filters) else []
    set_console_level(settings.log_level)
    return dg.Definitions(
        assets=[
            raw_shards,
            *(spec.merge_attributes(owners=settings.owners) for spec in (report, *found)),
            training_set.map_asset_specs(lambda spec: spec.merge_attributes(owners=settings.owners)),
            *(
                described(
                    with_verdicts(with_settings(asset, resources), statistics_folder(root), filters),
                    root,
                    settings.owners,
                )
                for asset in SHARDED_ASSETS
            ),
        ],
        asset_checks=[
            raw_gate_checks(),
            *landed_checks(SHARDED_ASSETS),
            *zero_loss_checks(),
            inventory_checks(SHARDED_ASSETS),
        ],
        jobs=JOBS,
        sensors=[
            new_shards,
            report_sensor,
            automation_sensor(settings.automation),
            alerts_sensor(settings),
        ],
        schedules=schedules(settings),
        resources=resources,
        # One process orchestrates, its workers do the work: only so do the assets of a run share them.
        executor=dg.in_process_executor,
    )


_PR_SET_PDEATHSIG = 1


class ForkedRun(ForkServerProcess):
    """A run of Dagster's code server, forked off multiprocessing's fork server.

    That is a new interpreter of one thread, which has imported what runs and their workers need: for each run
    2 s of CPU less, for each worker 0.5 s.
    """

    def run(self) -> None:
        # The server would take the death of its fork server for that of the run.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            with fork_server():
                super().run()
        finally:
            atexit._run_exitfuncs()  # which multiprocessing leaves out


class _ForkedRuns(ForkServerContext):
    Process = ForkedRun


def _fork_runs() -> None:
    """Have the code server of this process fork its runs; Dagster starts an interpreter for each."""
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    runs = _ForkedRuns()
    # The last two are of workers, which a run forks off itself.
    ours = ["mm_assets.definitions", "mm_assets.graph.shard_jobs", "mm_assets.graph.shard_work"]
    runs.set_forkserver_preload(["dagster._cli", "dagster._grpc.impl", *ours])
    server = sys.modules["dagster._grpc.server"].DagsterApiServer
    server._mp_ctx = property(lambda _: runs, lambda *_: None)


# Not where others only use parts of this module: their runs keep an environment of their own. What a plugin
# has started when it was imported would not survive a fork.
_IS_SERVED = "dagster._grpc.server" in sys.modules and __name__ in sys.argv
if _IS_SERVED and sys.platform == "linux" and not load_plugins():
    _fork_runs()

defs: dg.Definitions  # built when it is asked for: commands build their own
globals().pop("defs", None)  # of before a reload


def __getattr__(name: str) -> Any:
    if name != "defs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = build_definitions()
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), "defs"})  # Dagster looks for it there
