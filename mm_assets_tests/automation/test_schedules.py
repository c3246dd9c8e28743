"""Schedules run where a cron expression is set, and are there, stopped, where not."""

import os

import dagster as dg
import pytest

from mm_assets.automation.sensors import schedules
from mm_assets.definitions import build_definitions
from mm_assets.settings import Settings, machine_zone


def test_each_schedule_runs_only_where_its_setting_says_when() -> None:
    settings = Settings.load({"MM_REFRESH_CRON": "*/5 * * * *"})
    found = {each.name: (each.cron_schedule, each.default_status) for each in schedules(settings)}
    stopped = dg.DefaultScheduleStatus.STOPPED
    assert found == {
        "refresh": ("*/5 * * * *", dg.DefaultScheduleStatus.RUNNING),
        "prove": ("0 4 * * 0", stopped),
        "maintenance": ("0 5 * * 0", stopped),
    }


@pytest.mark.parametrize(
    ("zone", "machine", "taken"),
    [
        ("Asia/Tokyo", "Europe/Berlin", "Asia/Tokyo"),
        ("", "Europe/Berlin", "Europe/Berlin"),
        ("", ":/usr/share/zoneinfo/America/New_York", "America/New_York"),
        ("", "XYZ-3", "UTC"),
    ],
)
def test_they_go_by_the_time_zone_of_the_setting_else_of_the_machine(
    zone: str, machine: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", machine)
    for each in schedules(Settings.load({"MM_TIMEZONE": zone})):
        assert each.execution_timezone == taken
        assert each.description == f"Launches the job at times of {taken} (MM_TIMEZONE)."


def test_the_machine_names_its_zone_by_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr(os.path, "realpath", {"/etc/localtime": "/usr/share/zoneinfo/Europe/Paris"}.get)
    assert machine_zone() == "Europe/Paris"


@pytest.mark.parametrize("text", ["Berlin", "CET-1", "../UTC", "europe/berlin"])
def test_what_is_no_time_zone_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match="MM_TIMEZONE must be the name of a time zone, such as Europe/Berlin"
    ):
        Settings.load({"MM_TIMEZONE": text})


def test_their_jobs_are_in_the_code_location() -> None:
    definitions = build_definitions()
    for each in schedules(Settings.load({})):
        assert definitions.resolve_job_def(each.job_name).name == each.name


@pytest.mark.parametrize("text", ["daily", "@never", "0 2 * *", "0 2 * * * * *", "99 * * * *", "0 2 31 2 *"])
def test_what_is_no_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="MM_PROVE_CRON must be a cron expression of five fields"):
        Settings.load({"MM_PROVE_CRON": text})
