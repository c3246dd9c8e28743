"""Incidents: the causes that hold, which of them have been told, and what is to be told now.

A cause is told when it is first seen. Growth is told once, when its backfill has ended. That it is gone is
told once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mm_assets.automation.alerts.cause import Cause, Origin, Severity
from mm_assets.automation.alerts.messages import Message, alert, all_clear, headline, summary

# Causes of one backfill or run that get a message each; further ones share one when it has ended. With that
# one, and the all-clear, a backfill says no more than eight things, however much of it fails.
ALONE = 6

_MOST = 500  # incidents that are remembered


@dataclass
class Incident:
    """A cause that holds.

    Args:
        headline: what was told, or would have been.
        origin: id of the backfill or run; empty for none.
        shards: number of shards that was told.
        names: the first names, to see whether they are being made again.
        begun: when it was found first, in seconds since 1970.
        is_told: a message of it was sent, or of all its shards an earlier one.
        is_final: its figures are those of a backfill that has ended.
        repeats: ids of earlier backfills and runs whose shards failed in it again.
        repeated: how many shards were told with those, and not again.
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
            now: seconds since 1970.
        """
        found = {cause.key: cause for cause in causes}
        wanted = {
            key: cause for key, cause in found.items() if alert_on == "warn" or cause.severity == "error"
        }
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
        return [*messages, *([all_clear(gone, ui_url)] if gone else [])]

    def _goes_on(self, key: str, causes: Mapping[str, Cause]) -> bool:
        """Return whether the same is wrong in a later backfill or run: then nothing is clear."""
        same, gone = key.rpartition("|")[0], self.open[key]
        return any(
            other in causes
            and other.rpartition("|")[0] == same
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
            if incident.is_told and incident.origin and key.rpartition("|")[0] == cause.series
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
