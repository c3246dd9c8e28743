"""All causes that hold now, of every kind."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from mm_assets.automation.alerts import checks, shards
from mm_assets.automation.alerts.cause import Cause, Kind
from mm_assets.automation.alerts.failed_runs import FailedRun, failed_backfills, failed_runs
from mm_assets.automation.alerts.freshness import stale_assets
from mm_assets.automation.alerts.hanging import hanging, runs_in_progress
from mm_assets.automation.alerts.incidents import Incident
from mm_assets.automation.alerts.shares import CURATED, FILTERED, drift, loss
from mm_assets.automation.alerts.state import State
from mm_assets.automation.alerts.ticks import failing_ticks
from mm_assets.automation.alerts.view import View

_FROM_EVENTS = (Kind.CHECK, Kind.NOT_LANDED, Kind.DRIFT, Kind.LOSS)
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_RUNS = 500  # that ended, looked at in one tick
_OVERLAP = 120.0  # seconds that clocks of processes may differ, and that a change takes to be seen


@dataclass(frozen=True)
class Found:
    """The causes of one tick.

    Args:
        is_held: whether an incident stays although no cause is its own: nothing has happened since, or its
            shards are being made again.
    """

    causes: list[Cause]
    is_held: Callable[[str, Incident], bool]


def find_causes(view: View, state: State, max_loss: float, fresh_within: float | None) -> Found:
    """Return what is wrong now, and note in the state what has been looked at.

    Args:
        max_loss: share of a shard that may be lost.
        fresh_within: seconds in which each asset must be materialized; None for no limit.
    """
    in_progress = runs_in_progress(view)
    ended = _ended_runs(view, state)
    latest = view.instance.event_log_storage.get_maximum_record_id() or 0
    is_quiet = (
        latest == state.event_log
        and not ended
        and all(incident.is_final or not incident.origin for incident in state.incidents.open.values())
    )
    found: list[Cause] = []
    attempts = shards.Attempts({}, {})
    checked: set[str] = set()
    if not is_quiet:
        attempts = shards.open_attempts(view)
        active = [record.dagster_run.run_id for record in (*in_progress, *ended)]
        is_first = state.event_log is None or len(ended) >= _RUNS
        asked = (
            checks.all_checks(view) if is_first else checks.checks_to_ask(view, active, state.incidents.open)
        )
        failed = checks.failed_checks(view, asked, shards.missing_shards(view, attempts.failed))
        found += [*failed.causes, *failed.missing]
        checked = failed.in_progress
        state.kept.read(view, FILTERED)
        state.lost.read(view, CURATED, max_loss)
        found += [*drift(view, state.kept), *loss(view, state.lost, max_loss)]
    state.event_log = latest
    found += _failures(view, state, ended, found)
    found += hanging(view, in_progress)
    found += failing_ticks(view)
    if fresh_within is not None:
        found += stale_assets(view, fresh_within, state.since)

    def is_held(key: str, incident: Incident) -> bool:
        kind, subject = key.split("|")[:2]
        if is_quiet and kind in _FROM_EVENTS:
            return True
        if kind == Kind.CHECK and key.rpartition("|")[0] in checked:
            return True
        pending = attempts.in_progress.get(subject, frozenset()) if kind == Kind.NOT_LANDED else frozenset()
        return bool(pending) and (
            incident.shards > len(incident.names) or not pending.isdisjoint(incident.names)
        )

    return Found(found, is_held)


def detailed(view: View, cause: Cause) -> Cause:
    """Return a cause with what a message needs and a tick alone does not: names, reasons, of how many."""
    match cause.kind:
        case Kind.CHECK:
            return checks.with_names(view, cause)
        case Kind.NOT_LANDED:
            return shards.with_reasons(view, cause)
    return cause


def new_part(view: View, cause: Cause, told: Collection[str]) -> Cause | None:
    """Return what is new of a cause that was told of earlier backfills or runs; None: nothing is.

    Args:
        told: ids of those backfills and runs.
    """
    match cause.kind:
        case Kind.CHECK:
            return checks.new_part(view, cause, told)
        case Kind.NOT_LANDED:
            return shards.new_part(view, cause, told)
    return cause


def _ended_runs(view: View, state: State) -> list[dg.RunRecord]:
    """Return the runs that ended since the last tick."""
    since = dg.RunsFilter(
        statuses=_ENDED, updated_after=datetime.fromtimestamp(state.runs_seen - _OVERLAP, UTC)
    )
    records = view.instance.get_run_records(
        since, limit=_RUNS + len(state.judged), order_by="update_timestamp", ascending=True
    )
    view.add(record.dagster_run for record in records)
    new = [record for record in records if record.dagster_run.run_id not in set(state.judged)]
    state.judged = [record.dagster_run.run_id for record in records][-2 * _RUNS :]
    state.runs_seen = new[-1].update_timestamp.timestamp() if len(new) >= _RUNS else view.now
    return new


def _failures(view: View, state: State, ended: list[dg.RunRecord], found: list[Cause]) -> list[Cause]:
    """Return the failed runs and backfills that no failed check and no missing shard explains."""
    known = [cause for cause in found if cause.kind in _FROM_EVENTS and cause.severity == "error"]
    runs = {run_id for cause in known for run_id in cause.run_ids}
    origins = {cause.origin.id for cause in known if cause.origin}
    failures = failed_runs(view, state.failed_runs, ended, runs)
    state.failed_runs, state.backfills_seen = failed_backfills(view, failures, state.backfills_seen, origins)
    return [FailedRun.stored(failure).cause(view) for failure in state.failed_runs]
