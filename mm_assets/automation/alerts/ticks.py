"""Sensors and schedules whose ticks fail."""

from __future__ import annotations

from mm_assets.automation.alerts.cause import Cause, Kind
from mm_assets.automation.alerts.run_errors import first_line
from mm_assets.automation.alerts.view import View
from mm_assets.io_managers import instance_queries

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
