"""Runs whose process has died are failed, and others are left alone."""

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import GRPC_INFO_TAG

from mm_assets.graph.instance_queries import PROCESS, fail_lost_runs, process_tag, watched
from mm_assets.storage.temporary import was_running
from mm_assets_tests.cli.commands import environment

STARTED = dg.DagsterRunStatus.STARTED


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


def run(instance: dg.DagsterInstance, run_id: str, tags: dict[str, str], location: str | None = None) -> None:
    origin = None
    if location is not None:
        repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "repository")
        origin = repository.get_job_origin("all_assets")
    instance.add_run(
        dg.DagsterRun("all_assets", run_id=run_id, status=STARTED, tags=tags, remote_job_origin=origin)
    )


def status(instance: dg.DagsterInstance, run_id: str) -> str:
    found = instance.get_run_by_id(run_id)
    assert found is not None
    return found.status.value


def test_runs_that_died_before_they_were_watched_are_found_where_they_were_started(
    instance: dg.DagsterInstance,
) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone = process.pid
    runs = {"1" * 36: os.getpid(), "2" * 36: gone, "3" * 36: gone, "4" * 36: None, "5" * 36: gone}
    for run_id, pid in runs.items():
        location = "another" if run_id[0] == "5" else "ours"
        run(instance, run_id, {} if run_id[0] == "3" else {GRPC_INFO_TAG: "{}"}, location)
        if pid is not None:
            data = EngineEventData.in_process(pid)
            instance.report_engine_event("started", instance.get_run_by_id(run_id), data)
    assert fail_lost_runs(instance) == []
    assert fail_lost_runs(instance, "ours") == ["2" * 36]
    assert status(instance, "2" * 36) == "FAILURE"
    assert fail_lost_runs(instance, "ours") == []


def test_a_process_that_has_the_number_of_another_is_another() -> None:
    assert was_running(os.getpid(), time.time())
    assert not was_running(os.getpid(), time.time() - 1e6)


def test_only_runs_of_dead_processes_are_lost(instance: dg.DagsterInstance) -> None:
    code = (
        "import os, sys, dagster as dg\n"
        "from mm_assets.graph.instance_queries import process_tag\n"
        f"with dg.DagsterInstance.from_config({instance.root_directory!r}) as instance:\n"
        "    with process_tag(instance) as tags:\n"
        "        print(*tags.values(), flush=True)\n"
        "        os._exit(1)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    dead = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False).stdout
    assert Path(instance.root_directory, dead.strip()).exists()
    with process_tag(instance) as tags:
        run(instance, "1" * 36, tags)
        run(instance, "2" * 36, {PROCESS: dead.strip()})
        run(instance, "3" * 36, {})
        run(instance, "4" * 36, {PROCESS: "../../elsewhere"})
        assert fail_lost_runs(instance) == ["2" * 36]
        assert [status(instance, str(n) * 36) for n in (1, 2, 3, 4)] == [
            *("STARTED", "FAILURE", "STARTED", "STARTED")
        ]
        assert fail_lost_runs(instance) == []
        assert Path(instance.root_directory, tags[PROCESS]).exists()
    assert not Path(instance.root_directory, tags[PROCESS]).exists()
    assert not Path(instance.root_directory, dead.strip()).exists()


def test_a_run_in_another_pod_is_left_to_its_launcher(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """On Kubernetes each pod has its own folder: the file of a run is not there, and its process unknown."""
    (tmp_path / "pod").mkdir()
    with dg.instance_for_test(temp_dir=str(tmp_path / "pod")) as of_pod, process_tag(of_pod) as tags:
        name = tags[PROCESS]
        for tag in (name, re.sub(r"\.\w+-\d+-(\w+)\.tmp$", r".0badcafe-4000000-\1.tmp", name)):
            run(instance, str(uuid.uuid4()), {PROCESS: tag})
        assert tag != name
        assert fail_lost_runs(instance, "ours") == []


def test_a_run_that_repeats_a_lost_one_is_not_lost_for_the_tag_it_has_from_that(
    instance: dg.DagsterInstance,
) -> None:
    with process_tag(instance) as tags:
        dead = tags[PROCESS].replace(f"-{os.getpid()}-", "-4000000-")
    parent = dg.DagsterRun("all_assets", run_id="5" * 36, status=STARTED, tags={PROCESS: dead})
    instance.add_run(parent)
    assert fail_lost_runs(instance) == [parent.run_id]
    repeated = dg.DagsterRun(
        "all_assets",
        run_id="6" * 36,
        status=STARTED,
        tags={PROCESS: dead},
        parent_run_id=parent.run_id,
        root_run_id=parent.run_id,
    )
    instance.add_run(repeated)
    assert fail_lost_runs(instance) == [], "it has not begun to be watched"
    with watched(instance, repeated):
        found = instance.get_run_by_id(repeated.run_id)
        assert found is not None and Path(instance.root_directory, found.tags[PROCESS]).exists()
        assert fail_lost_runs(instance) == []
