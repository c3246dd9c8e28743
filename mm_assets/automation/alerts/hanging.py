"""Runs and backfills that have begun, have not ended, and do nothing."""

from __future__ import annotations

import dagster as dg

from mm_assets.automation.alerts.cause import Cause, Kind, Origin
from mm_assets.automation.alerts.view import View
from mm_assets.io_managers import instance_queries

# Seconds without any event. A run logs each shard as it lands, so this is far more than a shard takes.
SILENT = 3600.0

_ASKED = 100  # runs, and backfills, of which the last event is looked up


def runs_in_progress(view: View) -> list[dg.RunRecord]:
    """Return the runs that work."""
    records = list(
        view.instance.get_run_records(dg.RunsFilter(statuses=instance_queries.WORKING), limit=_ASKED)
    )
    view.add(record.dagster_run for record in records)
    return records


def hanging(view: View, in_progress: list[dg.RunRecord]) -> list[Cause]:
    """Return the runs in progress, and the backfills without any, that have been silent for too long."""
    causes = []
    for record in in_progress:
        run = record.dagster_run
        if view.now - record.update_timestamp.timestamp() < SILENT:
            continue
        last = view.instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
        silent = view.now - (last[0].timestamp if last else record.create_timestamp.timestamp())
        if silent >= SILENT:
            status = run.status.value.lower()
            causes.append(_cause(run.job_name, Origin(run.run_id, False, False), silent, status))
    for backfill in instance_queries.backfills(view.instance, ("REQUESTED",), _ASKED):
        if view.now - backfill.backfill_timestamp < SILENT:
            continue
        tags = {"dagster/backfill": backfill.backfill_id}
        if instance_queries.unfinished_runs(view.instance, tags, limit=1):
            continue
        runs = view.instance.get_run_records(
            dg.RunsFilter(tags=tags), limit=1, order_by="update_timestamp", ascending=False
        )
        last_change = runs[0].update_timestamp.timestamp() if runs else backfill.backfill_timestamp
        if view.now - last_change >= SILENT:
            origin = Origin(backfill.backfill_id, True, False)
            causes.append(_cause("assets", origin, view.now - last_change, "requested"))
    return causes


def _cause(subject: str, origin: Origin, silent: float, status: str) -> Cause:
    figures = {"status": status, "hours without any event": f"{silent / 3600:.1f}"}
    return Cause(
        Kind.HANGING, "assets" if subject == "__ASSET_JOB" else subject, origin=origin, figures=figures
    )
