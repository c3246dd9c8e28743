"""State of the alerts between ticks, in the key-value store of the Dagster instance.

Not in the sensor's cursor: Dagster stores that at the end of a tick, and only if the tick succeeds. Here each
delivery is noted as soon as it is known, so that a restart repeats none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from mm_assets.automation.alerts.incidents import Incidents
from mm_assets.automation.alerts.outbox import Outbox
from mm_assets.automation.alerts.shares import Shares

KEY = "mm_assets/alerts"

# State of another version is not read: what holds is told again.
_VERSION = 1

# Seconds before the first tick, from which on failed runs and backfills are looked at.
_LOOK_BACK = 86400.0


@dataclass
class State:
    """What the alerts know of earlier ticks.

    Args:
        since: the first tick, in seconds since 1970, as all times here.
        event_log: id of the latest event at the last tick; None before the first.
        alert_on: the setting at the last tick.
        runs_seen: runs that ended before this time have been judged.
        judged: ids of runs that were judged although they ended shortly after.
        backfills_seen: backfills that ended until then have been judged.
        failed_runs: see `failed_runs.FailedRun`.
    """

    since: float
    event_log: int | None
    alert_on: str
    runs_seen: float
    judged: list[str]
    backfills_seen: float
    failed_runs: list[dict[str, Any]]
    kept: Shares
    lost: Shares
    incidents: Incidents
    outbox: Outbox
    _saved: str = field(default="", repr=False)

    @classmethod
    def load(cls, instance: dg.DagsterInstance, now: float) -> State:
        """Return the state that was saved last, or that before the first tick."""
        text = instance.daemon_cursor_storage.get_cursor_values({KEY}).get(KEY, "")
        values = json.loads(text) if text else {}
        if values.get("version") != _VERSION:
            values = {}
        return cls(
            values.get("since", now),
            values.get("event_log"),
            values.get("alert_on", ""),
            values.get("runs_seen", now - _LOOK_BACK),
            values.get("judged", []),
            values.get("backfills_seen", now - _LOOK_BACK),
            values.get("failed_runs", []),
            Shares.stored(values.get("kept")),
            Shares.stored(values.get("lost")),
            Incidents.stored(values.get("incidents")),
            Outbox.stored(values.get("outbox")),
            text,
        )

    def save(self, instance: dg.DagsterInstance) -> None:
        """Save the state, if it has changed."""
        plain = {
            "version": _VERSION,
            "since": self.since,
            "event_log": self.event_log,
            "alert_on": self.alert_on,
            "runs_seen": self.runs_seen,
            "judged": self.judged,
            "backfills_seen": self.backfills_seen,
            "failed_runs": self.failed_runs,
            "kept": self.kept.plain(),
            "lost": self.lost.plain(),
            "incidents": self.incidents.plain(),
            "outbox": self.outbox.plain(),
        }
        text = json.dumps(plain)
        if text != self._saved:
            instance.daemon_cursor_storage.set_cursor_values({KEY: text})
            self._saved = text
