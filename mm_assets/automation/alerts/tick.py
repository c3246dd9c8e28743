"""One tick of the alerts: find causes, put messages in the outbox, send what waits there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import dagster as dg

from mm_assets.automation.alerts.causes import detailed, find_causes, new_part
from mm_assets.automation.alerts.state import State
from mm_assets.automation.alerts.targets import targets
from mm_assets.automation.alerts.view import View
from mm_assets.interleaved.counted import counted
from mm_assets.settings import Settings


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
