"""The worker processes of a run: shared by its assets, gone with it."""

import os
from typing import Any

import dagster as dg
import pytest

from mm_assets.graph import Plan, io_manager
from mm_assets.graph.io_manager import ShardIOManager, Workers
from mm_assets.graph.planned_jobs import ShardReports
from mm_assets.pool import workers
from mm_assets.pool.workers import WorkerPool
from mm_assets_tests.graph.io_manager.conftest import Toy
from mm_assets_tests.worker_jobs import act


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every worker process that is started, by runs that have workers of their own."""
    processes: list[Any] = []
    monkeypatch.setattr(io_manager, "WorkerPool", WorkerPool)
    start = workers.start

    def counted(*arguments: Any) -> Any:
        worker = start(*arguments)
        processes.append(worker.process)
        return worker

    monkeypatch.setattr(workers, "start", counted)
    return processes


def test_assets_of_a_run_share_their_workers(deployment: Toy, started: list[Any]) -> None:
    deployment.shards(6)
    assert deployment.run("all", "k01", "k06").success
    assert len(started) == 2
    assert not any(process.is_alive() for process in started)


def test_number_of_processes_is_configured(deployment: Toy, started: list[Any]) -> None:
    deployment.config["processes"] = 1
    deployment.shards(6)
    assert deployment.run("two", "k01", "k06").success
    assert len(started) == 1


def test_interrupt_while_events_are_logged_ends_the_workers(
    deployment: Toy, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the run is terminated in the UI between two shards: at once, and not with the run's
    resources.
    """
    deployment.shards(6)
    alive: list[bool] = []

    def interrupted(*_: Any, **__: Any) -> None:
        raise dg.DagsterExecutionInterruptedError

    handle_output = ShardIOManager.handle_output

    def watched(self: ShardIOManager, context: dg.OutputContext, obj: Plan) -> None:
        try:
            handle_output(self, context, obj)
        finally:
            alive.extend(process.is_alive() for process in started)

    monkeypatch.setattr(ShardReports, "landed", interrupted)
    monkeypatch.setattr(ShardIOManager, "handle_output", watched)
    assert not deployment.run("two", "k01", "k06").success
    assert alive == [False, False]


def test_resource_outside_of_a_run() -> None:
    with dg.build_resources({"workers": Workers(processes=1)}) as resources:
        assert [result != os.getpid() for _, result in resources.workers.map(act, [("pid", 0)])] == [True]


def test_use_before_set_up_is_refused() -> None:
    with pytest.raises(RuntimeError, match="not been set up"):
        Workers().map(act, [])


def test_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        Workers(processes=-1)
