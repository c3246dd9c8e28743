"""Schedules run where a cron expression is set, and are there, stopped, where not."""

import dagster as dg
import pytest

from mm_assets.automation.sensors import schedules
from mm_assets.definitions import build_definitions
from mm_assets.settings import Settings


def test_each_schedule_runs_only_where_its_setting_says_when() -> None:
    settings = Settings.load({"MM_REFRESH_CRON": "*/5 * * * *"})
    found = {each.name: (each.cron_schedule, each.default_status) for each in schedules(settings)}
    stopped = dg.DefaultScheduleStatus.STOPPED
    assert found == {
        "refresh": ("*/5 * * * *", dg.DefaultScheduleStatus.RUNNING),
        "prove": ("0 4 * * 0", stopped),
        "maintenance": ("0 5 * * 0", stopped),
    }


def test_their_jobs_are_in_the_code_location() -> None:
    definitions = build_definitions()
    for each in schedules(Settings.load({})):
        assert definitions.resolve_job_def(each.job_name).name == each.name


@pytest.mark.parametrize("text", ["daily", "@never", "0 2 * *", "0 2 * * * * *", "99 * * * *", "0 2 31 2 *"])
def test_what_is_no_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="MM_PROVE_CRON must be a cron expression of five fields"):
        Settings.load({"MM_PROVE_CRON": text})
