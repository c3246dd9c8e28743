"""The sensor `alerts`: runs by itself only if there is a target, and requests nothing."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from mm_assets.automation.alerts.tick import alerts_sensor
from mm_assets.definitions import build_definitions
from mm_assets.settings import Settings
from mm_assets_tests.automation.alerts.receivers import Webhook
from mm_assets_tests.graph.io_manager import toy


def test_it_runs_by_itself_only_with_a_target() -> None:
    silent, loud = alerts_sensor(Settings()), alerts_sensor(Settings(alerts=("json://example.com",)))
    assert silent.default_status == dg.DefaultSensorStatus.STOPPED
    assert loud.default_status == dg.DefaultSensorStatus.RUNNING
    assert loud.minimum_interval_seconds == 30
    assert "alerts" in [sensor.name for sensor in build_definitions().sensors or ()]


def test_a_tick_says_what_it_did(instance: dg.DagsterInstance, hook: Webhook, tmp_path: Path) -> None:
    repository = toy.definitions(str(tmp_path), str(tmp_path)).get_repository_def()
    context = dg.build_sensor_context(instance=instance, repository_def=repository)
    said = alerts_sensor(Settings(alerts=(hook.url(),)))(context)
    assert said == dg.SkipReason("0 open problems; 0 messages delivered, 0 waiting")
    assert alerts_sensor(Settings())(context) == dg.SkipReason("MM_ALERTS names no target")
