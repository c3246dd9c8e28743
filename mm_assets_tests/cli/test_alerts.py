"""``mm-assets alerts test``: a message to each target, a line for each, no secret in sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm_assets_tests.automation.alerts.receivers import mail_server, webhook
from mm_assets_tests.cli.commands import only_line, run
from mm_assets_tests.free_port import free_port


def test_each_target_gets_a_message_and_a_line() -> None:
    with webhook() as hook, mail_server() as mail:
        done = run("alerts", "test", MM_ALERTS=f"{hook.url('s3cret')} '{mail.url}'", MM_UI_URL="http://ui")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"target 1 (json://127.0.0.1:{hook.port}…): delivered",
        "target 2 (mailto://example.com…): delivered",
    ]
    assert hook.titles == ["mm_assets: test of alerts"]
    assert hook.received[0]["message"].endswith("Page: http://ui/")
    assert [mail["Subject"] for mail in mail.mails] == hook.titles


def test_one_that_fails_is_named_and_the_others_get_theirs() -> None:
    port = free_port()
    with webhook() as hook:
        given = f"json://127.0.0.1:{port}/s3cret nosuch://s3cret@host {hook.url('s3cret')}"
        hook.answers = [403]
        done = run("alerts", "test", MM_ALERTS=f"{given} {hook.url('other')}")
    assert done.returncode == 1
    first, *others = done.stdout.splitlines()
    assert first.startswith(f"target 1 (json://127.0.0.1:{port}…): not delivered: ")
    assert others == [
        "target 2 (nosuch://…): not delivered: no URL that Apprise knows; see MM_ALERTS",
        f"target 3 (json://127.0.0.1:{hook.port}…): not delivered: it answered 403",
        f"target 4 (json://127.0.0.1:{hook.port}…): delivered",
    ]
    assert "s3cret" not in done.stdout + done.stderr


def test_a_target_of_the_settings_file_is_looked_for_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mm_assets.toml").write_text('alerts = ["nosuch://s3cret@host"]')
    done = run("alerts", "test")
    told = "target 1 (nosuch://…): not delivered: no URL that Apprise knows; see mm_assets.toml: alerts\n"
    assert (done.returncode, done.stdout) == (1, told)


def test_without_a_target_there_is_nothing_to_test() -> None:
    assert only_line(run("alerts", "test")) == (
        "MM_ALERTS names no target; it takes Apprise URLs, separated by whitespace"
    )
