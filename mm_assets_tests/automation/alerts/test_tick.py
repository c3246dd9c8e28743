"""Whole ticks: what reaches people, through outages, restarts and large backfills."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg

from mm_assets.automation.alerts.tick import KEY
from mm_assets_tests.automation.alerts.conftest import Alerts
from mm_assets_tests.automation.alerts.receivers import MailServer
from mm_assets_tests.free_port import free_port


def fail_a_check(alerts: Alerts, key: str) -> None:
    writer = alerts.writer()
    run = writer.begin_run()
    writer.evaluated(run, "curated", "not_empty", key, False, summary="no line")
    writer.end_run(run, True)


def test_a_failed_check_reaches_a_webhook_that_answers_503_twice_and_a_mail_server(
    alerts: Alerts, mails: MailServer
) -> None:
    key, _ = alerts.shards(2)
    fail_a_check(alerts, key)
    alerts.hook.answers = [503, 503]
    (message,) = alerts.tick(alerts.hook.url(), mails.url, ui_url="http://ui")
    (mail,) = mails.mails
    assert message["title"].startswith("mm_assets: Check not_empty of curated failed: 1 shard in run ")
    assert mail["Subject"] == message["title"]
    text = next(part for part in mail.walk() if part.get_content_type() == "text/plain").get_content()
    assert text.split() == message["message"].split()
    assert "- k00000: no line" in text
    assert alerts.tick(alerts.hook.url(), mails.url) == []
    assert len(mails.mails) == 1


def test_nothing_is_lost_while_the_target_is_down(alerts: Alerts) -> None:
    first, second = alerts.shards(2)
    fail_a_check(alerts, first)
    alerts.hook.answers = [503] * 6
    assert alerts.tick() == []
    fail_a_check(alerts, second)
    assert alerts.tick(later=40) == []
    assert alerts.tick(later=50) == []  # it is not its time yet
    assert len(alerts.hook.attempts) == 6
    assert len(alerts.tick(later=1000)) == 2
    assert all("503" in line and alerts.hook.url() not in line for line in alerts.lines)


def test_a_dead_target_keeps_no_message_from_the_others(alerts: Alerts, mails: MailServer) -> None:
    key, _ = alerts.shards(2)
    fail_a_check(alerts, key)
    dead = f"json://127.0.0.1:{free_port()}/dead"
    for later in (0, 100, 1000):
        alerts.tick(dead, alerts.hook.url(), "nosuch://secret", mails.url, later=later)
    assert len(alerts.hook.received) == len(mails.mails) == 1


_OTHER_PROCESS = """
import sys, time, dagster as dg
from mm_assets.automation.alerts.tick import tick
from mm_assets.settings import Settings
from mm_assets_tests.graph.io_manager import toy

home, url = sys.argv[1:]
with dg.DagsterInstance.from_config(home) as instance:
    repository = toy.definitions("raw", "out").get_repository_def()
    print(tick(instance, repository, Settings(alerts=(url,)), time.time(), print))
"""


def test_another_process_repeats_nothing_and_sends_what_is_left(alerts: Alerts) -> None:
    key, other = alerts.shards(2)
    fail_a_check(alerts, key)
    assert len(alerts.tick(alert_on="error")) == 1
    fail_a_check(alerts, other)
    alerts.hook.answers = [503] * 3
    assert alerts.tick(alert_on="error", later=-60) == []
    command = [sys.executable, "-W", "ignore", "-c", _OTHER_PROCESS, alerts.instance.root_directory]
    done = subprocess.run(
        [*command, alerts.hook.url()], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "2 open problems; 1 message delivered, 0 waiting"
    assert len(alerts.hook.received) == len(set(alerts.hook.titles)) == 2


def test_no_secret_is_stored_or_logged(alerts: Alerts, instance: dg.DagsterInstance) -> None:
    key, _ = alerts.shards(2)
    fail_a_check(alerts, key)
    alerts.hook.answers = [500] * 3
    alerts.tick(alerts.hook.url("s3cret"))
    stored = instance.daemon_cursor_storage.get_cursor_values({KEY})[KEY]
    assert json.loads(stored)["outbox"]
    assert "s3cret" not in stored + "".join(alerts.lines)
    databases = [path for path in Path(instance.root_directory).rglob("*.db*") if path.is_file()]
    assert databases and not any(b"s3cret" in path.read_bytes() for path in databases)


def test_ten_thousand_failing_shards_of_one_backfill_are_few_messages(alerts: Alerts) -> None:
    keys = alerts.shards(10_000)
    writer = alerts.writer()
    writer.begin_backfill(keys)
    received = []
    for start in range(0, len(keys), 2000):
        run = writer.begin_run()
        chunk = keys[start : start + 2000]
        writer.all_planned(run, "curated", chunk)
        for key in chunk[:10]:
            writer.materialized(run, "curated", key)
        for key in chunk[:10]:
            writer.evaluated(run, "curated", "not_empty", key, False, summary="no line")
            writer.evaluated(run, "curated", "short_lines", key, False, "WARN")
        writer.end_run(run, False)
        if start in (0, 4000):
            received += alerts.tick()
    received += alerts.tick()
    writer.end_backfill()
    for _ in range(3):
        received += alerts.tick()
    assert len(received) <= 10
    *_, last = received
    assert last["title"] == f"mm_assets: backfill {writer.backfill} has ended: 3 new or grown problems"
    lines = last["message"].splitlines()
    found = [line for line in lines if line.startswith("*")]
    assert re.sub(r"\(first seen: [^;]*; ", "(", found[0]) == (
        f"* 9950 of 10000 shards did not land: curated in backfill {writer.backfill} (told before: 1990)"
    )
    assert [line.partition(" in backfill")[0] for line in found[1:]] == [
        "* Check not_empty of curated failed: 50 of 10000 shards",
        "* Check short_lines of curated warns: 50 of 10000 shards",
    ]
    assert len(last["message"]) < 4000
    stored = alerts.instance.daemon_cursor_storage.get_cursor_values({KEY})[KEY]
    assert len(stored) < 20_000
