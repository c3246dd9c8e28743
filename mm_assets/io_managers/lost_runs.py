"""Runs whose process has died: Dagster takes them to be going on for ever.

They would block the run queue, and their shards would count as in progress.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
from dagster._core.storage.tags import GRPC_INFO_TAG

from mm_assets.formats.temporary_files import (
    create_locked,
    is_stale,
    is_temporary,
    temporary_name,
    was_running,
)
from mm_assets.io_managers.instance_queries import unfinished_runs

# Tag of a run: the file beside Dagster's databases that the process of the run keeps locked.
PROCESS = "mm_assets/process"

_DEAD = "the process of this run has died"


@contextmanager
def process_tag(instance: dg.DagsterInstance) -> Iterator[dict[str, str]]:
    """Give the tag of the runs that this process executes itself; they are watched within this context."""
    folder = Path(instance.root_directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / temporary_name("run")
    descriptor = create_locked(path)
    try:
        yield {PROCESS: path.name}
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def watched(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[None]:
    """Have a run watched, within this context, that its launcher does not watch: that of `dagster dev`."""
    if PROCESS in run.tags and not _has_tag_of_parent(instance, run):
        yield
        return
    with process_tag(instance) as tag:
        instance.add_run_tags(run.run_id, tag)
        yield


def fail_lost_runs(instance: dg.DagsterInstance, code_location: str | None = None) -> list[str]:
    """Report runs as failed whose process is dead, and return their ids.

    Args:
        code_location: name of the one whose server this process is, and so starts its runs for the daemon.
            Then those are found, too, that died before they were watched, or that need no workers and are not
            watched at all.
    """
    lost = []
    for run in unfinished_runs(instance):
        if run.status == dg.DagsterRunStatus.QUEUED:  # it has no process yet
            continue
        name = run.tags.get(PROCESS, "")
        if not is_temporary(name) or _has_tag_of_parent(instance, run):
            is_ours = code_location is not None and _location_of(run) == code_location
            if is_ours and _has_lost_process(instance, run):
                instance.report_run_failed(run, _DEAD)
                lost.append(run.run_id)
            continue
        path = Path(instance.root_directory, Path(name).name)
        if is_stale(path):
            instance.report_run_failed(run, _DEAD)
            lost.append(run.run_id)
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return lost


def _location_of(run: dg.DagsterRun) -> str | None:
    return None if run.remote_job_origin is None else run.remote_job_origin.location_name


def _has_lost_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether the process is gone that this code server has started for a run."""
    if run.status != dg.DagsterRunStatus.STARTED or GRPC_INFO_TAG not in run.tags:
        return False
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        pid = entry.get_dagster_event().engine_event_data.metadata.get("pid")
        if pid is not None:
            is_gone = not was_running(int(str(pid.value)), entry.timestamp)
            stored = instance.get_run_by_id(run.run_id)  # it may have ended since
            return is_gone and stored is not None and not stored.is_finished
    return False


def _has_tag_of_parent(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run has its tag from the run that it repeats: Dagster copies tags."""
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
    return parent is not None and parent.tags.get(PROCESS) == run.tags.get(PROCESS)
