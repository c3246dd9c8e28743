"""Causes of alerts in runs and backfills, in the shards that they were to make, and in sensors and schedules.

`View` is the Dagster instance as one tick sees it, for all finders of causes: runs are read once, with their
origin. `run_error` is the reason why a run failed, in one line.

* `missing_shards`: shards that did not land: their latest attempt has ended without a materialization.
* `failed_runs`, `failed_backfills`: those that failed for another reason than failed checks and shards that
  did not land. Each is judged once, when it is first seen to have failed. What remains is kept in the state
  of the alerts until a later run of the same kind succeeds.
* `hanging`: runs and backfills that have begun, have not ended, and do nothing.
* `stale_assets`: assets of which no shard has been materialized for too long.
* `failing_ticks`: sensors and schedules whose ticks fail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import dagster as dg

from mm_assets.automation.alerts import NAMED, Cause, Kind, Origin
from mm_assets.automation.whole_set import training_set
from mm_assets.graph import dagster_internals, instance_queries
from mm_assets.graph.dagster_internals import SHARDS
from mm_assets.graph.instance_queries import FailingPartition
from mm_assets.graph.io_manager import LANDED, SHARDED_TAG
from mm_assets.graph.planned_jobs import parse_failure
from mm_assets.graph.proof import ZERO_LOSS
from mm_assets.model.errors import counted

_SHOWN_STEPS = 3


def run_error(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the errors of a run's failed steps, else that of the run; empty if it has not failed."""
    types = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    steps, run = [], ""
    for record in instance.get_records_for_run(run_id, of_type=types, limit=100).records:
        event = record.event_log_entry.dagster_event
        if event is None:
            continue
        if event.is_step_failure:
            error = event.step_failure_data.error
            while error is not None and error.cause is not None:
                error = error.cause
            steps.append(f"{event.step_key}: {first_line(error.message if error else event.message or '')}")
        else:
            run = first_line(event.message or "")
    more = f"; and {counted(len(steps) - _SHOWN_STEPS, 'more step')}" if steps[_SHOWN_STEPS:] else ""
    return "; ".join(steps[:_SHOWN_STEPS]) + more if steps else run


def first_line(text: str) -> str:
    """Return the first line with something in it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


_BATCH = 500  # run ids in one query
_BACKFILL = "dagster/backfill"
WILL_RETRY, _RETRY = "dagster/will_retry", "dagster/auto_retry_run_id"  # tags of a failed run
_RETRIED_WITHIN = 3600.0  # seconds
_DECIDED_WITHIN = 60.0  # seconds; Dagster tags a failed run right after it has failed
_ACTIVE_BACKFILL = ("REQUESTED", "CANCELING", "FAILING")


@dataclass
class View:
    """What the finders of causes look at.

    Args:
        repository: the code location, with assets, checks, sensors and schedules.
        now: seconds since 1970.
    """

    instance: dg.DagsterInstance
    repository: dg.RepositoryDefinition
    now: float
    _runs: dict[str, dg.DagsterRun] = field(default_factory=dict)
    _origins: dict[str, Origin] = field(default_factory=dict)

    @cached_property
    def shards(self) -> frozenset[str]:
        """Names of the shards there are."""
        return frozenset(self.instance.get_dynamic_partitions(str(SHARDS.name)))

    def is_sharded(self, asset: dg.AssetKey) -> bool:
        """Return whether the partitions of the asset are the shards."""
        graph = self.repository.asset_graph
        return graph.has(asset) and graph.get(asset).partitions_def == SHARDS

    def ancestors(self, asset: dg.AssetKey) -> set[dg.AssetKey]:
        """Return all assets that this one is made from, directly or not."""
        graph = self.repository.asset_graph
        found: set[dg.AssetKey] = set()
        todo = [asset]
        while todo:
            child = todo.pop()
            parents = set(graph.get(child).parent_keys) if graph.has(child) else set()
            todo += parents - found
            found |= parents
        return found

    def runs(self, run_ids: Iterable[str]) -> dict[str, dg.DagsterRun]:
        """Return the runs of these ids that have not been deleted."""
        wanted = list(dict.fromkeys(run_ids))
        missing = [run_id for run_id in wanted if run_id not in self._runs]
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            self.add(self.instance.get_runs(dg.RunsFilter(run_ids=batch)))
        return {run_id: self._runs[run_id] for run_id in wanted if run_id in self._runs}

    def add(self, runs: Iterable[dg.DagsterRun]) -> None:
        """Keep runs that have been read by another query."""
        self._runs |= {run.run_id: run for run in runs}

    def has_ended(self, run: dg.DagsterRun) -> bool:
        """Return whether a run has ended, and so have those that Dagster starts in its place.

        A failed run that is to be started again, and has not been within an hour, will not be.
        """
        if not run.is_finished or self.is_undecided(run):
            return False
        if run.status != dg.DagsterRunStatus.FAILURE or run.tags.get(WILL_RETRY) != "true":
            return True
        retry = run.tags.get(_RETRY)
        if retry is not None:
            found = self.runs([retry]).get(retry)
            return found is None or self.has_ended(found)
        record = self.instance.get_run_record_by_id(run.run_id)
        return record is None or self.now - record.update_timestamp.timestamp() > _RETRIED_WITHIN

    def is_undecided(self, run: dg.DagsterRun) -> bool:
        """Return whether a run has failed just now, and no tag says yet whether it is started again."""
        is_failed = run.status == dg.DagsterRunStatus.FAILURE
        if not is_failed or WILL_RETRY in run.tags or not self.instance.run_retries_enabled:
            return False
        record = self.instance.get_run_record_by_id(run.run_id)
        return record is not None and self.now - record.update_timestamp.timestamp() < _DECIDED_WITHIN

    def origin(self, run: dg.DagsterRun) -> Origin:
        """Return the backfill of a run, else the run itself."""
        backfill = run.tags.get(_BACKFILL)
        return self.backfill(backfill) if backfill else Origin(run.run_id, False, run.is_finished)

    def origin_id(self, run_id: str) -> str:
        """Return the id of a run's backfill, else that of the run."""
        run = self.runs([run_id]).get(run_id)
        return self.origin(run).id if run else run_id

    def backfill(self, backfill_id: str) -> Origin:
        """Return a backfill; one that is unknown, or has been deleted, has ended."""
        if backfill_id not in self._origins:
            found = self.instance.get_backfill(backfill_id)
            ended = found is None or found.status.value not in _ACTIVE_BACKFILL
            self._origins[backfill_id] = Origin(backfill_id, True, ended)
        return self._origins[backfill_id]

    def run_ids(self, origin: Origin) -> list[str]:
        """Return all runs of a backfill, or the one run."""
        if not origin.is_backfill:
            return [origin.id]
        return list(self.instance.get_run_ids(dg.RunsFilter(tags={_BACKFILL: origin.id})))

    def runs_of(self, origins: Collection[str]) -> list[str]:
        """Return the runs of backfills and single runs, by their ids."""
        of_backfills = dg.RunsFilter(tags={_BACKFILL: sorted(origins)})
        return [*origins, *self.instance.get_run_ids(of_backfills)]

    def size(self, origin: Origin, asset: dg.AssetKey) -> int:
        """Return how many shards of an asset a backfill or run is to make; 0 if that is not known."""
        if not origin.is_backfill:
            runs = self.runs([origin.id])
            if not runs or not self.is_sharded(asset):
                return 0
            return len(dagster_internals.keys_of_run(runs[origin.id], SHARDS, self.instance))
        return instance_queries.backfill_size(self.instance, origin.id, self.repository.asset_graph, asset)

    def sized(self, cause: Cause, names: Mapping[str, str]) -> Cause:
        """Return a cause with these names, and with the number of shards among which its shards are."""
        asset = dg.AssetKey.from_user_string(cause.subject)
        of = self.size(cause.origin, asset) if cause.origin else 0
        return replace(cause, names=names, of=max(of, cause.shards) if of else 0)


_RUNS = 3  # runs whose logs are searched
_SHOWN_ASSETS = 8
_COMPARED = 1000  # shards whose reasons are read, to see whether they failed for another one before


@dataclass(frozen=True)
class Attempts:
    """Shards whose latest attempt has not landed, by asset.

    Args:
        failed: with the run of the attempt, which has ended.
        in_progress: those that are being made.
        is_waiting: whether one of these runs failed and has not been started again yet.
    """

    failed: Mapping[dg.AssetKey, Mapping[str, str]]
    in_progress: Mapping[str, frozenset[str]]
    is_waiting: bool = False


def missing_shards(view: View, failed: Mapping[dg.AssetKey, Mapping[str, str]]) -> list[Cause]:
    """Return what did not land, one cause for each asset and backfill or run.

    A shard is counted where it failed first: that it is missing in the assets made from there is no further
    cause.

    Args:
        failed: see `Attempts`.
    """
    causes = []
    for asset, attempts in failed.items():
        upstream = {key for parent in view.ancestors(asset) for key in failed.get(parent, {})}
        by_origin: dict[Origin, dict[str, str]] = defaultdict(dict)
        runs = view.runs(attempts.values())
        for key, run_id in attempts.items():
            if key not in upstream:
                by_origin[view.origin(runs[run_id])][key] = run_id
        for origin, keys in by_origin.items():
            downstream = [
                other.to_user_string()
                for other, found in failed.items()
                if asset in view.ancestors(other) and not found.keys().isdisjoint(keys)
            ]
            causes.append(_missing_cause(view, asset, origin, keys, downstream))
    return causes


def detailed(view: View, cause: Cause) -> Cause:
    """Return the cause with the size of its backfill or run, and with the reasons that the logs give."""
    reasons: dict[str, str] = {}
    for run_id in cause.run_ids[:_RUNS]:
        for message in instance_queries.messages(view.instance, run_id):
            found = parse_failure(message)
            if found and found.asset == cause.subject:
                reasons.setdefault(found.key, found.error)
        if reasons.keys() >= cause.names.keys():
            break
    if not reasons and cause.run_ids:  # the run died before it could tell
        error = run_error(view.instance, cause.run_ids[0])
        reasons = dict.fromkeys(cause.names, error)
    return view.sized(cause, {key: reasons.get(key, "") for key in cause.names})


def new_part(view: View, cause: Cause, told: Collection[str]) -> Cause | None:
    """Return the cause with the shards only that did not fail before for the same reason.

    Args:
        told: ids of backfills and runs whose shards that did not land were told.

    Returns:
        None: nothing of it is new.
    """
    asset = dg.AssetKey.from_user_string(cause.subject)
    assert cause.origin is not None, "each attempt has a run"
    earlier_runs = set(view.runs_of(told)).difference(view.run_ids(cause.origin))
    before = dagster_internals.attempts_without_result(view.instance, asset, cause.failing, earlier_runs)
    compared = sorted(before)[:_COMPARED]
    earlier = instance_queries.reasons(view.instance, asset, {key: before[key] for key in compared})
    now = {key: cause.failing[key].run_id for key in compared}
    reasons = instance_queries.reasons(view.instance, asset, now)
    repeated = {key for key in before if key not in now or reasons.get(key, "") == earlier.get(key, "")}
    cause = cause.without(repeated)
    return cause if cause.shards else None


def open_attempts(view: View) -> Attempts:
    """Return the attempts on shards that have not landed; what is cancelled is none, and mends none.

    Of several attempts on a shard one that goes on counts, else the last: what a run has planned that waits,
    or works, is older than what another one has found meanwhile. A shard that is being made again in an asset
    is so in all that are made from it, too: a run may not have planned it there yet.
    """
    unfinished = dagster_internals.unfinished_runs(view.instance)
    view.add(unfinished)
    going_on = {run.run_id for run in unfinished}
    found = {}
    cancelled: set[str] = set()
    # Inputs first: what has landed in an asset when it is read, is planned in those that are read after it.
    for asset in view.repository.asset_graph.toposorted_asset_keys:
        if view.is_sharded(asset) and asset in view.repository.asset_graph.materializable_asset_keys:
            last = dagster_internals.attempts_without_result(view.instance, asset, but=cancelled)
            while new := _cancelled(view, last.values()):
                cancelled |= new
                last = dagster_internals.attempts_without_result(view.instance, asset, but=cancelled)
            if last and going_on:
                last |= dagster_internals.attempts_without_result(view.instance, asset, last, going_on)
            found[asset] = last
    runs = view.runs(run_id for attempts in found.values() for run_id in attempts.values())
    open_ = {run_id for run_id, run in runs.items() if not view.has_ended(run)}
    failed: dict[dg.AssetKey, dict[str, str]] = {}
    in_progress: dict[str, frozenset[str]] = {}
    for asset, attempts in sorted(found.items()):
        being_made = {
            key
            for each in (asset, *view.ancestors(asset))
            for key, run in found.get(each, {}).items()
            if run in open_
        }
        in_progress[asset.to_user_string()] = frozenset(being_made.intersection(attempts))
        failed[asset] = {
            key: run
            for key, run in attempts.items()
            if run in runs and key in view.shards and key not in being_made
        }
    is_waiting = any(runs[run_id].is_finished for run_id in open_)
    return Attempts({asset: found for asset, found in failed.items() if found}, in_progress, is_waiting)


def _cancelled(view: View, run_ids: Iterable[str]) -> set[str]:
    runs = view.runs(run_ids)
    return {run_id for run_id, run in runs.items() if run.status == dg.DagsterRunStatus.CANCELED}


def _missing_cause(
    view: View, asset: dg.AssetKey, origin: Origin, keys: dict[str, str], downstream: list[str]
) -> Cause:
    is_error = view.repository.asset_graph.get(asset).tags.get(SHARDED_TAG) != "skip"
    failing = {key: FailingPartition(run_id, is_error) for key, run_id in keys.items()}
    more = ", …" if downstream[_SHOWN_ASSETS:] else ""
    figures = {"missing for that in": ", ".join(downstream[:_SHOWN_ASSETS]) + more} if downstream else {}
    return Cause(Kind.NOT_LANDED, asset.to_user_string(), origin=origin, figures=figures).of_shards(failing)


_KEPT = 50  # failures that are remembered, the latest
_LOOKED_AT = 20  # later runs that may have mended one
_BACKFILL_JOB = "backfill"


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
        subject = "assets" if self.job == _BACKFILL_JOB else _subject(self.job)
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
        if (has_success or failure.job == _BACKFILL_JOB) and _is_mended(view, failure):
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
        found.append(
            asdict(FailedRun(backfill.backfill_id, True, _BACKFILL_JOB, assets, created, "", error, 0))
        )
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
    # Not `get_run_step_stats`, which reads the events of all shards.
    records = view.instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    failed = [record.event_log_entry.step_key or "" for record in records]
    return bool(failed) and all(key.endswith((f"_{LANDED}", f"_{ZERO_LOSS}")) for key in failed)


def _is_mended(view: View, failure: FailedRun) -> bool:
    """Return whether a later run, or backfill, of the same kind has succeeded."""
    if failure.job == _BACKFILL_JOB:
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
            causes.append(_hanging_cause(run.job_name, Origin(run.run_id, False, False), silent, status))
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
            causes.append(_hanging_cause("assets", origin, view.now - last_change, "requested"))
    return causes


def _hanging_cause(subject: str, origin: Origin, silent: float, status: str) -> Cause:
    figures = {"status": status, "hours without any event": f"{silent / 3600:.1f}"}
    return Cause(Kind.HANGING, _subject(subject), origin=origin, figures=figures)


def stale_assets(view: View, within: float, since: float) -> list[Cause]:
    """Return one cause that names the assets without a materialization in the last ``within`` seconds.

    The training set is none of them: it is made only when somebody asks for it.

    Args:
        since: when the alerts began, in seconds since 1970; an asset that was never materialized is stale
            ``within`` seconds later.
    """
    assets = sorted(view.repository.asset_graph.materializable_asset_keys - {training_set.key})
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
