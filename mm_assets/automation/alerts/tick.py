"""One tick of the alerts: find causes, put messages in the outbox, send what waits there.

* `find_causes`: all causes that hold now, of every kind.
* `Incidents`: the causes that hold, which of them have been told, and what is to be told now. A cause is told
  when it is first seen. Growth is told once, when its backfill has ended. That it is gone is told once.
* `State`: what is kept between ticks, in the key-value store of the Dagster instance. Not in the sensor's
  cursor: Dagster stores that at the end of a tick, and only if the tick succeeds. Here each delivery is noted
  as soon as it is known, so that a restart repeats none.
* `alerts_sensor`: the sensor `alerts`, which tells people what is wrong, by the targets in ``MM_ALERTS``.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import dagster as dg

from mm_assets.automation.alerts import (
    Cause,
    Kind,
    Message,
    Origin,
    Severity,
    alert,
    all_clear,
    checks,
    headline,
    reminder,
    runs,
    series_of,
    summary,
)
from mm_assets.automation.alerts.checks import CURATED, FILTERED, Shares, drift, loss
from mm_assets.automation.alerts.delivery import Outbox, targets
from mm_assets.automation.alerts.runs import (
    FailedRun,
    View,
    failed_backfills,
    failed_runs,
    failing_ticks,
    hanging,
    runs_in_progress,
    stale_assets,
)
from mm_assets.model.errors import counted
from mm_assets.settings import Settings

# Causes of one backfill or run that get a message each; further ones share one when it has ended. With that
# one, and the all-clear, a backfill says no more than eight things, however much of it fails.
ALONE = 6

_MOST = 500  # incidents that are remembered
_MOST_NAMES = 100  # shards of one


@dataclass
class Incident:
    """A cause that holds.

    Args:
        headline: what was told, or would have been.
        origin: id of the backfill or run; empty for none.
        shards: number of shards that was told.
        names: the first names, to see whether they are being made again; also later ones.
        begun: when it was found first, in seconds since 1970.
        is_told: a message of it was sent, or of all its shards an earlier one.
        is_final: its figures are those of a backfill that has ended.
        repeats: ids of earlier backfills and runs whose shards failed in it again.
        repeated: how many shards were told with those, and not again.
        most: the largest number of shards that were found, told or not.
        reminded: when it was last told of again; 0: never.
    """

    headline: str
    severity: Severity
    origin: str
    shards: int
    names: list[str]
    begun: float
    is_told: bool = False
    is_final: bool = False
    repeats: list[str] = field(default_factory=list)
    repeated: int = 0
    most: int = 0
    reminded: float = 0.0

    def note(self, cause: Cause) -> None:
        """Note which shards a cause has now."""
        self.names += [name for name in cause.names if name not in self.names][
            : _MOST_NAMES - len(self.names)
        ]
        self.most = max(self.most, self.shards, cause.shards)

    def may_have(self, keys: Collection[str]) -> bool:
        """Return whether some of these shards are its own: of many only the first are known."""
        return bool(keys) and (
            max(self.most, self.shards) > len(self.names) or not set(keys).isdisjoint(self.names)
        )


@dataclass
class Incidents:
    """All incidents, by the key of their cause."""

    open: dict[str, Incident]

    @classmethod
    def stored(cls, values: Mapping[str, Any] | None) -> Incidents:
        """Return them from the values of `plain`."""
        return cls({key: Incident(**incident) for key, incident in (values or {}).items()})

    def plain(self) -> dict[str, Any]:
        """Return plain values to be stored."""
        return {key: asdict(incident) for key, incident in self.open.items()}

    def update(
        self,
        causes: Iterable[Cause],
        *,
        detailed: Callable[[Cause], Cause],
        new_part: Callable[[Cause, Collection[str]], Cause | None],
        is_held: Callable[[str, Incident], bool],
        alert_on: Severity,
        remind_after: float | None,
        ui_url: str,
        now: float,
    ) -> list[Message]:
        """Take over what is wrong now, and return what is to be told.

        Args:
            detailed: adds names and reasons to a cause; asked only for those that are told.
            new_part: takes out of a cause what failed in these backfills and runs already; None: nothing is
                left. Asked only for causes of which an earlier backfill or run was told.
            is_held: whether an incident stays although its cause was not found in this tick.
            alert_on: `warn` tells causes of that severity, too.
            remind_after: seconds after which what still holds is told again; None: never.
            now: seconds since 1970.
        """
        found = {cause.key: cause for cause in causes}
        wanted = {
            key: cause for key, cause in found.items() if alert_on == "warn" or cause.severity == "error"
        }
        for key in wanted.keys() & self.open.keys():
            self.open[key].note(wanted[key])
        telling = _Telling(detailed, new_part, ui_url, now)
        messages = [*self._begun(wanted, telling), *self._ended(wanted, telling)]
        gone: dict[str, float] = {}
        for key, incident in list(self.open.items()):
            if key in wanted or (key not in found and is_held(key, incident)):
                continue
            if incident.is_told and key not in found and not self._goes_on(key, wanted):
                gone[incident.headline] = incident.begun
            del self.open[key]
        self.open = dict(list(self.open.items())[-_MOST:])
        # What was told in one message may go on in parts.
        for incident in self.open.values():
            gone.pop(incident.headline, None)
        messages += [all_clear(gone, ui_url)] if gone else []
        return messages + (self._reminders(remind_after, ui_url, now) if remind_after else [])

    def _reminders(self, after: float, ui_url: str, now: float) -> list[Message]:
        """Tell of all that holds, once something was last told so long ago."""
        told = [incident for incident in self.open.values() if incident.is_told]
        if all(now - max(incident.begun, incident.reminded) < after for incident in told):
            return []
        holding: dict[str, float] = {}
        for incident in sorted(told, key=lambda incident: incident.begun):
            incident.reminded = now
            holding.setdefault(incident.headline, incident.begun)
        is_error = any(incident.severity == "error" for incident in told)
        return [reminder(holding, "error" if is_error else "warn", ui_url)]

    def _goes_on(self, key: str, causes: Mapping[str, Cause]) -> bool:
        """Return whether the same is wrong in a later backfill or run: then nothing is clear."""
        same, gone = series_of(key), self.open[key]
        return any(
            other in causes
            and series_of(other) == same
            and (
                gone.origin in incident.repeats
                or (incident.begun > gone.begun and _may_share(incident, gone))
            )
            for other, incident in self.open.items()
        )

    def _told_before(self, cause: Cause) -> dict[str, Incident]:
        """Return what was told of earlier backfills and runs, and is the same but for its shards."""
        if cause.origin is None:
            return {}
        return {
            incident.origin: incident
            for key, incident in self.open.items()
            if incident.is_told and incident.origin and series_of(key) == cause.series
        }

    def _begun(self, causes: Mapping[str, Cause], telling: _Telling) -> list[Message]:
        """Enter new causes, and tell the first ones of each backfill or run."""
        told: dict[str, int] = defaultdict(int)
        for incident in self.open.values():
            told[incident.origin] += incident.is_told
        messages = []
        entered: dict[str, Incident] = {}
        for cause in sorted(causes.values(), key=_urgency):
            if cause.key in self.open:
                continue
            before = self._told_before(cause)
            new = telling.new_part(cause, before) if before else cause
            whole = _incident(cause, telling.now, is_told=True)
            before = {origin: each for origin, each in before.items() if _may_share(whole, each)} or before
            if new is None:
                first = min(before.values(), key=lambda incident: incident.begun)
                entered[cause.key] = replace(
                    _incident(cause, first.begun, is_told=True),
                    headline=first.headline,
                    reminded=max(incident.reminded for incident in before.values()),
                    repeats=list(before),
                    repeated=cause.shards,
                )
                continue
            origin = cause.origin.id if cause.origin else ""
            is_told = not origin or told[origin] < ALONE
            if is_told:
                new = telling.detailed(new)
                messages.append(alert(new, telling.ui_url, telling.now, cause.shards - new.shards))
                told[origin] += 1
            entered[cause.key] = replace(
                _incident(new, telling.now, is_told),
                shards=cause.shards,
                repeats=list(before),
                repeated=cause.shards - new.shards,
            )
        self.open |= entered
        return messages

    def _ended(self, causes: Mapping[str, Cause], telling: _Telling) -> list[Message]:
        """Tell, of backfills and runs that have ended, what has grown and what was not told yet."""
        by_origin: dict[Origin, list[Cause]] = defaultdict(list)
        told: dict[str, int] = {}
        for key, cause in causes.items():
            incident = self.open[key]
            if cause.origin is None or not cause.origin.has_ended or incident.is_final:
                continue
            before = incident.shards - incident.repeated
            new: Cause | None = cause
            if incident.is_told and cause.shards <= incident.shards:
                new = None
            elif incident.repeats:
                new = telling.new_part(cause, incident.repeats)
            if new is None or (incident.is_told and new.shards <= before):
                incident.is_final = True
                continue
            if incident.is_told and before:
                told[key] = before
            by_origin[cause.origin].append(new)
        messages = []
        for origin, grown in by_origin.items():
            grown = [telling.detailed(cause) for cause in sorted(grown, key=_urgency)]
            begun = {cause.key: self.open[cause.key].begun for cause in grown}
            messages.append(summary(origin, grown, told, begun, telling.ui_url))
            for cause in grown:
                self.open[cause.key] = replace(
                    _incident(cause, begun[cause.key], is_told=True),
                    is_final=True,
                    reminded=telling.now,
                    repeats=self.open[cause.key].repeats,
                )
        return messages


@dataclass(frozen=True)
class _Telling:
    """What messages are made with: see `Incidents.update`."""

    detailed: Callable[[Cause], Cause]
    new_part: Callable[[Cause, Collection[str]], Cause | None]
    ui_url: str
    now: float


def _incident(cause: Cause, begun: float, is_told: bool) -> Incident:
    origin = cause.origin.id if cause.origin else ""
    names = list(cause.names)
    return Incident(headline(cause), cause.severity, origin, cause.shards, names, begun, is_told=is_told)


def _may_share(one: Incident, other: Incident) -> bool:
    """Return whether two incidents may have a shard in common: of many shards only the first are known."""
    are_known = one.shards <= len(one.names) and other.shards <= len(other.names)
    return not are_known or not set(one.names).isdisjoint(other.names)


def _urgency(cause: Cause) -> tuple[bool, int, str]:
    return cause.severity != "error", -cause.shards, cause.key


KEY = "mm_assets/alerts"

# State of another version is not read: what holds is told again.
_VERSION = 1

# Seconds before the first tick, from which on failed runs and backfills are looked at.
_LOOK_BACK = 86400.0


_STORED = {
    "kept": Shares.stored,
    "lost": Shares.stored,
    "incidents": Incidents.stored,
    "outbox": Outbox.stored,
}


@dataclass(kw_only=True)
class State:
    """What the alerts know of earlier ticks.

    Args:
        since: the first tick, in seconds since 1970, as all times here.
        event_log: id of the latest event at the last tick; None before the first.
        alert_on: the setting at the last tick.
        runs_seen: runs that ended before this time have been judged.
        judged: ids of runs that were judged although they ended shortly after.
        backfills_seen: backfills that ended until then have been judged.
        failed_runs: see `mm_assets.automation.alerts.runs.FailedRun`.
        is_waiting: a failed run was to be started again at the last tick, which makes no event if it is not.
    """

    since: float
    event_log: int | None = None
    alert_on: str = ""
    runs_seen: float
    judged: list[str] = field(default_factory=list)
    backfills_seen: float
    failed_runs: list[dict[str, Any]] = field(default_factory=list)
    is_waiting: bool = False
    kept: Shares = field(default_factory=Shares)
    lost: Shares = field(default_factory=Shares)
    incidents: Incidents = field(default_factory=lambda: Incidents({}))
    outbox: Outbox = field(default_factory=lambda: Outbox({}))
    _saved: str = field(default="", repr=False)

    @classmethod
    def load(cls, instance: dg.DagsterInstance, now: float) -> State:
        """Return the state that was saved last, or that before the first tick."""
        text = instance.daemon_cursor_storage.get_cursor_values({KEY}).get(KEY, "")
        values = json.loads(text) if text else {}
        if values.pop("version", None) != _VERSION:
            values = {}
        values = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        values |= {name: stored(values[name]) for name, stored in _STORED.items() if name in values}
        first = {"since": now, "runs_seen": now - _LOOK_BACK, "backfills_seen": now - _LOOK_BACK}
        return cls(**{**first, **values, "_saved": text})

    def save(self, instance: dg.DagsterInstance) -> None:
        """Save the state, if it has changed."""
        plain = {name: value for name, value in vars(self).items() if name != "_saved"}
        plain |= {name: plain[name].plain() for name in _STORED}
        text = json.dumps({"version": _VERSION, **plain})
        if text != self._saved:
            instance.daemon_cursor_storage.set_cursor_values({KEY: text})
            self._saved = text


class _Finder(Protocol):
    """A finder of causes in shards: it knows more of them than a tick alone needs."""

    def detailed(self, view: View, cause: Cause) -> Cause: ...
    def new_part(self, view: View, cause: Cause, told: Collection[str]) -> Cause | None: ...


_OF_SHARDS: Mapping[Kind, _Finder] = {Kind.CHECK: checks, Kind.NOT_LANDED: runs}
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
        and not (ended or state.is_waiting)
        and all(incident.is_final or not incident.origin for incident in state.incidents.open.values())
    )
    found: list[Cause] = []
    attempts = runs.Attempts({}, {})
    checked: set[str] = set()
    if not is_quiet:
        attempts = runs.open_attempts(view)
        state.is_waiting = attempts.is_waiting
        active = [record.dagster_run.run_id for record in (*in_progress, *ended)]
        is_first = state.event_log is None or len(ended) >= _RUNS
        asked = (
            checks.all_checks(view) if is_first else checks.checks_to_ask(view, active, state.incidents.open)
        )
        missing = runs.missing_shards(view, attempts.failed)
        failed = checks.failed_checks(view, asked, missing, attempts.in_progress)
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
        if kind == Kind.CHECK and series_of(key) in checked:
            return True
        return kind == Kind.NOT_LANDED and incident.may_have(attempts.in_progress.get(subject, frozenset()))

    return Found(found, is_held)


def detailed(view: View, cause: Cause) -> Cause:
    """Return a cause with what a message needs and a tick alone does not: names, reasons, of how many."""
    finder = _OF_SHARDS.get(cause.kind)
    return cause if finder is None else finder.detailed(view, cause)


def new_part(view: View, cause: Cause, told: Collection[str]) -> Cause | None:
    """Return what is new of a cause that was told of earlier backfills or runs; None: nothing is.

    Args:
        told: ids of those backfills and runs.
    """
    finder = _OF_SHARDS.get(cause.kind)
    return cause if finder is None else finder.new_part(view, cause, told)


def _ended_runs(view: View, state: State) -> list[dg.RunRecord]:
    """Return the runs that ended since the last tick."""
    since = dg.RunsFilter(
        statuses=_ENDED, updated_after=datetime.fromtimestamp(state.runs_seen - _OVERLAP, UTC)
    )
    records = view.instance.get_run_records(
        since, limit=_RUNS + len(state.judged), order_by="update_timestamp", ascending=True
    )
    view.add(record.dagster_run for record in records)
    records = [record for record in records if not view.is_undecided(record.dagster_run)]
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


def tick(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    settings: Settings,
    now: float,
    log: Callable[[str], None],
) -> str:
    """Tell what has gone wrong since the last tick, and what is over; return one line about it.

    Args:
        now: seconds since 1970.
        log: called with a line for each target that could not be reached.
    """
    view = View(instance, repository, now)
    state = State.load(instance, now)
    if state.alert_on != settings.alert_on:  # what was passed over may count now: look at all of it again
        state.alert_on, state.event_log = settings.alert_on, None
    found = find_causes(view, state, settings.max_loss, settings.fresh_within)
    messages = state.incidents.update(
        found.causes,
        detailed=partial(detailed, view),
        new_part=partial(new_part, view),
        is_held=found.is_held,
        alert_on="warn" if settings.alert_on == "warn" else "error",
        remind_after=settings.alert_remind,
        ui_url=settings.ui_url or "",
        now=now,
    )
    wanted = targets(settings.alerts)
    state.outbox.put(wanted, messages)
    save = partial(state.save, instance)
    save()
    delivered = state.outbox.send(wanted, now, save, log)
    waiting = sum(len(box.waiting) for box in state.outbox.mailboxes.values())
    told = sum(incident.is_told for incident in state.incidents.open.values())
    return f"{counted(told, 'open problem')}; {counted(delivered, 'message')} delivered, {waiting} waiting"


def alerts_sensor(settings: Settings) -> dg.SensorDefinition:
    """Return the sensor; it runs by itself if MM_ALERTS names a target."""

    @dg.sensor(
        name="alerts",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.alerts else dg.DefaultSensorStatus.STOPPED,
        description="Tells the targets in MM_ALERTS what is wrong, once for each cause, and when it is over.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Tell what is wrong, once for each cause, and when it is over."""
        if not settings.alerts:
            return dg.SkipReason("MM_ALERTS names no target")
        repository = context.repository_def
        assert repository is not None, "Dagster gives a sensor its code location"
        return dg.SkipReason(tick(context.instance, repository, settings, time.time(), context.log.warning))

    return alerts
