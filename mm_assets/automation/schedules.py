"""Schedules `refresh`, `prove` and `maintenance`: each runs where its setting has a cron expression."""

from __future__ import annotations

import dagster as dg

from mm_assets.automation.backfills import STARTED_BY
from mm_assets.settings import Settings

# Cron expression of a schedule that is stopped, so that starting it in the UI makes sense.
_DEFAULT_CRON = {"refresh": "0 2 * * *", "prove": "0 4 * * 0", "maintenance": "0 5 * * 0"}


def schedules(settings: Settings) -> list[dg.ScheduleDefinition]:
    """Return the schedules of the jobs of the same names."""
    crons = {
        "refresh": settings.refresh_cron,
        "prove": settings.prove_cron,
        "maintenance": settings.maintenance_cron,
    }
    return [
        dg.ScheduleDefinition(
            name=name,
            job_name=name,
            cron_schedule=cron or _DEFAULT_CRON[name],
            default_status=dg.DefaultScheduleStatus.RUNNING if cron else dg.DefaultScheduleStatus.STOPPED,
            tags={STARTED_BY: f"schedule {name}"},
        )
        for name, cron in crons.items()
    ]
