"""Ctrl-C during a headless run: one line, and no process is left."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from mm_assets.terminal import interrupted


def watch_for_interrupts() -> None:
    """End the command with one line on Ctrl-C; while Dagster runs, it ends the run first.

    Dagster's helper processes would each print a traceback. They inherit that the signal is blocked and end
    with this process, so a thread receives the signal instead. Call it before Dagster is imported: some
    imports would swallow the interrupt.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(interrupted()))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def was_interrupted(result: Any) -> bool:
    """Return whether a run ended by an interrupt; `result` is an ``ExecuteInProcessResult``."""
    from dagster import DagsterEventType

    if any(event.event_type is DagsterEventType.PIPELINE_CANCELED for event in result.all_events):
        return True
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    errors += [event.job_failure_data.error for event in result.all_events if event.is_job_failure]
    return any(error is not None and error.cls_name == "DagsterExecutionInterruptedError" for error in errors)
