"""Causes of alerts in runs, backfills, sensors and schedules.

* `failed_runs`, `failed_backfills`: those that failed for another reason than failed checks and shards that
  did not land. Each is judged once, when it is first seen to have failed. What remains is kept in the state
  of the alerts until a later run of the same kind succeeds.
* `hanging`: runs and backfills that have begun, have not ended, and do nothing.
* `stale_assets`: assets of which no shard has been materialized for too long.
* `failing_ticks`: sensors and schedules whose ticks fail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from mm_assets.automation.alerts.message import NAMED, Cause, Kind, Origin
from mm_assets.automation.alerts.shards import WILL_RETRY, View, first_line, run_error
from mm_assets.graph import dagster_internals, instance_queries
from mm_assets.graph.io_manager import LANDED
from mm_assets.graph.proof import ZERO_LOSS

_KEPT = 50  # failures that are remembered, the latest
_LOOKED_AT = 20  # later runs that may have mended one
_BACKFILL = "backfill"


@dataclass(frozen=True)
class FailedRun:
    """A run, or the runs of a backfill, that failed.

    Args:
        job: name of the job; `backfill` for a backfill that failed as such.
        assets: the assets that were selected.
        created: when the run was created, in seconds since 1970.
        runs: how many runs of the backfill failed.
    """

    origin: str
    is_backfill: bool
    job: str
    assets: tuple[str, ...]
    created: float
    run_id: str
    error: str
    runs: int = 1

    def cause(self, view: View) -> Cause:
        """Return the failure as a cause."""
        ended = view.backfill(self.origin).has_ended if self.is_backfill else True
        names = {", ".join(self.assets[:8]) + (", …" if self.assets[8:] else ""): ""} if self.assets else {}
        figures = {"reason": self.error} | ({"failed runs": str(self.runs)} if self.is_backfill else {})
        subject = "assets" if self.job == _BACKFILL else _subject(self.job)
        origin = Origin(self.origin, self.is_backfill, ended)
        return Cause(Kind.RUN_FAILED, subject, origin=origin, names=names, figures=figures)

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> FailedRun:
        """Return it from the values that `asdict` made."""
        return cls(**{**values, "assets": tuple(values["assets"])})


def failed_runs(
    view: View, known: Iterable[Mapping[str, Any]], ended: Sequence[dg.RunRecord], explained: Collection[str]
) -> list[dict[str, Any]]:
    """Return the failures to remember: the known ones that nothing has mended, and new ones.

    One that repeats a known one, as a nightly job does, is not new.

    Args:
        known: failures remembered so far.
        ended: runs that ended since the last tick.
        explained: ids of runs whose failed checks or missing shards are causes.
    """
    found = {failure.origin: failure for failure in map(FailedRun.stored, known)}
    has_success = any(record.dagster_run.status == dg.DagsterRunStatus.SUCCESS for record in ended)
    for failure in list(found.values()):
        if (has_success or failure.job == _BACKFILL) and _is_mended(view, failure):
            del found[failure.origin]
    for record in ended:
        run = record.dagster_run
        retried = run.tags.get(WILL_RETRY) == "true"
        if run.status != dg.DagsterRunStatus.FAILURE or run.run_id in explained or retried:
            continue
        if _has_only_failed_checks(view, run.run_id):
            continue  # what they found is told, or was told of an earlier attempt
        origin = view.origin(run)
        if origin.id in found:
            found[origin.id] = replace(found[origin.id], runs=found[origin.id].runs + 1)
            continue
        failure = FailedRun(
            origin.id,
            origin.is_backfill,
            run.job_name,
            _assets(run),
            record.create_timestamp.timestamp(),
            run.run_id,
            run_error(view.instance, run.run_id),
        )
        repeats = any(
            (known.job, known.assets, known.error) == (failure.job, failure.assets, failure.error)
            for known in found.values()
        )
        if not repeats and not _is_mended(view, failure):
            found[origin.id] = failure
    return [asdict(failure) for failure in list(found.values())[-_KEPT:]]


def failed_backfills(
    view: View, known: list[dict[str, Any]], since: float, explained: Collection[str]
) -> tuple[list[dict[str, Any]], float]:
    """Return the failures to remember with those of backfills that failed although none of their runs did.

    The second value is the ``since`` of the next call.

    Args:
        since: end of the backfills that were judged before, in seconds since 1970.
        explained: ids of backfills with failed checks or missing shards.
    """
    origins = {str(failure["origin"]) for failure in known}
    found, latest = [], since
    for backfill in instance_queries.backfills(view.instance, ("FAILED", "COMPLETED_FAILED"), _LOOKED_AT):
        ended = backfill.backfill_end_timestamp or backfill.backfill_timestamp
        latest = max(latest, ended)
        if ended <= since or backfill.backfill_id in origins or backfill.backfill_id in explained:
            continue
        if backfill.error is None and _has_runs_that_ended_badly(view, backfill.backfill_id):
            continue  # each of them has been judged
        error = first_line(backfill.error.message) if backfill.error else "not all of it has been made"
        assets, created = _assets(backfill), backfill.backfill_timestamp
        found.append(asdict(FailedRun(backfill.backfill_id, True, _BACKFILL, assets, created, "", error, 0)))
    return [*known, *found][-_KEPT:], latest


def _assets(of: Any) -> tuple[str, ...]:
    """Return the names of the assets that a run, or a backfill, has selected."""
    return tuple(sorted(key.to_user_string() for key in of.asset_selection or ()))


def _subject(job: str) -> str:
    return "assets" if job == "__ASSET_JOB" else job


def _has_runs_that_ended_badly(view: View, backfill_id: str) -> bool:
    ended = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
    return bool(
        view.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill_id}, statuses=ended), limit=1)
    )


def _has_only_failed_checks(view: View, run_id: str) -> bool:
    """Return whether no step has failed but those of checks that fail their run on purpose."""
    failed = [
        step.step_key
        for step in view.instance.get_run_step_stats(run_id)
        if step.status is not None and step.status.value == "FAILURE"
    ]
    return bool(failed) and all(key.endswith((f"_{LANDED}", f"_{ZERO_LOSS}")) for key in failed)


def _is_mended(view: View, failure: FailedRun) -> bool:
    """Return whether a later run, or backfill, of the same kind has succeeded."""
    if failure.job == _BACKFILL:
        return any(
            backfill.backfill_timestamp > failure.created and failure.assets == _assets(backfill)
            for backfill in instance_queries.backfills(view.instance, ("COMPLETED_SUCCESS",), _LOOKED_AT)
        )
    later = dg.RunsFilter(
        job_name=failure.job,
        statuses=[dg.DagsterRunStatus.SUCCESS],
        created_after=datetime.fromtimestamp(failure.created, UTC),
    )
    for run in view.instance.get_runs(later, limit=_LOOKED_AT):
        if run.tags.get("dagster/root_run_id") == failure.run_id:
            return True
        if view.origin(run).id != failure.origin and set(_assets(run)) >= set(failure.assets):
            return True
    return False


# Seconds without any event. A run logs each shard as it lands, so this is far more than a shard takes.
SILENT = 3600.0

_ASKED = 100  # runs, and backfills, of which the last event is looked up


def runs_in_progress(view: View) -> list[dg.RunRecord]:
    """Return the runs that work."""
    records = list(
        view.instance.get_run_records(dg.RunsFilter(statuses=dagster_internals.WORKING), limit=_ASKED)
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
        if dagster_internals.unfinished_runs(view.instance, tags, limit=1):
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
    return Cause(Kind.HANGING, _subject(subject), origin=origin, figures=figures)


def stale_assets(view: View, within: float, since: float) -> list[Cause]:
    """Return one cause that names the assets without a materialization in the last ``within`` seconds.

    Args:
        since: when the alerts began, in seconds since 1970; an asset that was never materialized is stale
            ``within`` seconds later.
    """
    assets = sorted(view.repository.asset_graph.materializable_asset_keys)
    last: dict[str, float | None] = {asset.to_user_string(): None for asset in assets}
    for record in view.instance.get_asset_records(assets):
        entry = record.asset_entry
        if entry.last_materialization is not None:
            last[entry.asset_key.to_user_string()] = entry.last_materialization.timestamp
    stale = {
        asset: f"last materialized {(view.now - moment) / 3600:.1f} hours ago"
        if moment
        else "never materialized"
        for asset, moment in last.items()
        if view.now - (moment or since) > within
    }
    if not stale:
        return []
    figures = {"assets": f"{len(stale)} of {len(assets)}", "MM_FRESH_WITHIN": f"{within / 3600:g} hours"}
    return [Cause(Kind.STALE, "assets", names=dict(list(stale.items())[:NAMED]), figures=figures)]


# One failed tick of a sensor may be a restart; the next comes within seconds. That of a schedule may be a day
# off.
_FAILED_IN_A_ROW = {"SENSOR": 2, "SCHEDULE": 1}


def failing_ticks(view: View) -> list[Cause]:
    """Return the running sensors and schedules of the code location whose latest ticks failed."""
    names = {sensor.name for sensor in view.repository.sensor_defs}
    names |= {schedule.name for schedule in view.repository.schedule_defs}
    causes = []
    for state in view.instance.all_instigator_state():
        kind = state.instigator_type.value
        if state.instigator_name not in names or state.status.value == "STOPPED":
            continue
        needed = _FAILED_IN_A_ROW.get(kind, 2)
        ticks = instance_queries.finished_ticks(
            view.instance, state.instigator_origin_id, state.selector_id, needed
        )
        if len(ticks) < needed or not all(tick.is_failure for tick in ticks):
            continue
        error = ticks[0].error
        figures = {"reason": first_line(error.message)} if error else {}
        causes.append(Cause(Kind.TICKS, f"{kind.lower()} {state.instigator_name}", figures=figures))
    return causes
