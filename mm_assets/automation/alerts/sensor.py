"""Sensor `alerts`: tells people what is wrong, by the targets in MM_ALERTS."""

import time

import dagster as dg

from mm_assets.automation.alerts.tick import tick
from mm_assets.settings import Settings


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
