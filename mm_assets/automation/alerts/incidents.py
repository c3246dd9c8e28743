"""Incidents: the causes that hold, which of them have been told, and what is to be told now.

A cause is told when it is first seen. Growth is told once, when its backfill has ended. That it is gone is
told once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
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
        is_told: a message of it was sent.
        is_final: its figures are those of a backfill that has ended.
    """

    headline: str
    severity: Severity
    origin: str
    shards: int
    names: list[str]
    begun: float
    is_told: bool = False
    is_final: bool = False


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
        is_held: Callable[[str, Incident], bool],
        alert_on: Severity,
        ui_url: str,
        now: float,
    ) -> list[Message]:
        """Take over what is wrong now, and return what is to be told.

        Args:
            detailed: adds names and reasons to a cause; asked only for those that are told.
            is_held: whether an incident stays although its cause was not found in this tick.
            alert_on: `warn` tells causes of that severity, too.
            now: seconds since 1970.
        """
        found = {cause.key: cause for cause in causes}
        wanted = {
            key: cause for key, cause in found.items() if alert_on == "warn" or cause.severity == "error"
        }
        messages = [*self._begun(wanted, detailed, ui_url, now), *self._ended(wanted, detailed, ui_url)]
        gone = []
        for key, incident in list(self.open.items()):
            if key in wanted or (key not in found and is_held(key, incident)):
                continue
            if incident.is_told and key not in found and not self._goes_on(key, wanted):
                gone.append(incident.headline)
            del self.open[key]
        self.open = dict(list(self.open.items())[-_MOST:])
        return [*messages, *([all_clear(gone, ui_url)] if gone else [])]

    def _goes_on(self, key: str, causes: Mapping[str, Cause]) -> bool:
        """Return whether the same is wrong in a later backfill or run: then nothing is clear."""
        same = key.rpartition("|")[0]
        return any(
            other in causes and other.rpartition("|")[0] == same and incident.begun > self.open[key].begun
            for other, incident in self.open.items()
        )

    def _begun(
        self, causes: Mapping[str, Cause], detailed: Callable[[Cause], Cause], ui_url: str, now: float
    ) -> list[Message]:
        """Enter new causes, and tell the first ones of each backfill or run."""
        told: dict[str, int] = defaultdict(int)
        for incident in self.open.values():
            told[incident.origin] += incident.is_told
        messages = []
        for cause in sorted(causes.values(), key=_urgency):
            if cause.key in self.open:
                continue
            origin = cause.origin.id if cause.origin else ""
            is_told = not origin or told[origin] < ALONE
            if is_told:
                cause = detailed(cause)
                messages.append(alert(cause, ui_url))
                told[origin] += 1
            self.open[cause.key] = _incident(cause, now, is_told)
        return messages

    def _ended(
        self, causes: Mapping[str, Cause], detailed: Callable[[Cause], Cause], ui_url: str
    ) -> list[Message]:
        """Tell, of backfills and runs that have ended, what has grown and what was not told yet."""
        by_origin: dict[Origin, list[Cause]] = defaultdict(list)
        told: dict[str, int] = {}
        for key, cause in causes.items():
            incident = self.open[key]
            if cause.origin is None or not cause.origin.has_ended or incident.is_final:
                continue
            if incident.is_told and cause.shards <= incident.shards:
                incident.is_final = True
                continue
            if incident.is_told:
                told[key] = incident.shards
            by_origin[cause.origin].append(cause)
        messages = []
        for origin, grown in by_origin.items():
            grown = [detailed(cause) for cause in sorted(grown, key=_urgency)]
            messages.append(summary(origin, grown, told, ui_url))
            for cause in grown:
                self.open[cause.key] = replace(
                    _incident(cause, self.open[cause.key].begun, is_told=True), is_final=True
                )
        return messages


def _incident(cause: Cause, begun: float, is_told: bool) -> Incident:
    origin = cause.origin.id if cause.origin else ""
    names = list(cause.names)
    return Incident(headline(cause), cause.severity, origin, cause.shards, names, begun, is_told=is_told)


def _urgency(cause: Cause) -> tuple[bool, int, str]:
    return cause.severity != "error", -cause.shards, cause.key
