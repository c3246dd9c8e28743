"""The reason why a run failed, in one line."""

from __future__ import annotations

import dagster as dg

from mm_assets.interleaved.counted import counted

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
