"""Targets are named without a secret, and say why they did not take a message."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import repeat

import pytest
import requests

from mm_assets.automation.alerts import Message
from mm_assets.automation.alerts.delivery import Target, targets
from mm_assets_tests.automation.alerts.receivers import MailServer, Webhook, mail_server, webhook
from mm_assets_tests.free_port import free_port

HELLO = Message("mm_assets: hello", "first line\nsecond <line>", "error")

SECRETS = ("s3cret", "T1JJ3T3L2", "A1BRTD4JD", "IntegrationKey", "mysecrettopic", "hunter2", "4174216298")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("json://u:s3cret@example.com:8080/hunter2?+X-Token=s3cret", "json://example.com:8080…"),
        ("jsons://example.com/s3cret", "jsons://example.com…"),
        ("json://u:p@s3cret@example.com", "json://example.com…"),
        ("json://u:s3cret/hunter2@example.com", "json://…"),
        ("mailtos://me:hunter2@example.com?to=a@b.c", "mailtos://example.com…"),
        ("slack://T1JJ3T3L2/A1BRTD4JD/s3cret/#general", "slack://…"),
        ("https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/s3cret", "https://…"),
        ("pagerduty://IntegrationKey@s3cret", "pagerduty://…"),
        ("discord://4174216298/s3cret", "discord://…"),
        ("ntfy://mysecrettopic", "ntfy://…"),
        ("s3cret", ""),
        ("s3cret://", ""),
        ("hunter2 s3cret://x", ""),
    ],
)
def test_no_secret_is_shown(url: str, shown: str) -> None:
    (target,) = targets([url])
    assert str(target) == (f"target 1 ({shown})" if shown else "target 1")
    for text in (str(target), repr(target), target.id):
        assert not any(secret in text for secret in SECRETS)


def test_a_webhook_gets_title_text_and_kind() -> None:
    with webhook() as hook:
        assert Target(1, hook.url()).send(HELLO) is None
    (message,) = hook.received
    assert (message["title"], message["message"], message["type"]) == (HELLO.title, HELLO.body, "failure")


def test_a_mail_has_a_subject_and_plain_text() -> None:
    with mail_server() as server:
        assert Target(1, server.url).send(HELLO) is None
    (mail,) = server.mails
    assert mail["Subject"] == HELLO.title
    assert mail["To"] == "team@example.com"
    plain = [part for part in mail.walk() if part.get_content_type() == "text/plain"]
    assert [part.get_content().split("\r\n")[:2] for part in plain] == [HELLO.body.splitlines()]


def test_why_a_message_was_not_delivered_names_no_secret(
    capfd: pytest.CaptureFixture[str],
) -> None:
    everywhere = logging.StreamHandler()
    logging.getLogger().addHandler(everywhere)
    port = free_port()
    with webhook() as hook:
        hook.answers = [503, 403]
        reasons = [
            Target(1, hook.url("s3cret")).send(HELLO),
            Target(1, hook.url("s3cret")).send(HELLO),
            Target(1, f"json://127.0.0.1:{port}/s3cret").send(HELLO),
            Target(1, f"mailto://hunter2:s3cret@example.com?smtp=127.0.0.1&port={port}").send(HELLO),
            Target(1, "mailto://hunter2:s3cret").send(HELLO),
            Target(1, "nosuch://hunter2:s3cret@example.com").send(HELLO),
            Target(1, "s3cret").send(HELLO),
        ]
    logging.getLogger().removeHandler(everywhere)
    assert reasons[:2] == ["it answered 503", "it answered 403"]
    assert reasons[5:] == ["no URL that Apprise knows; see MM_ALERTS"] * 2
    assert all(reasons)
    shown = " ".join([*map(str, reasons), *capfd.readouterr()])
    assert not any(secret in shown for secret in SECRETS), shown


@pytest.mark.parametrize("status", [200, 403])
def test_an_answer_without_end_is_read_to_a_bound(hook: Webhook, status: int) -> None:
    """The status decides."""
    hook.answers, hook.body = [status], repeat(b"x" * (1 << 20))
    assert Target(1, hook.url()).send(HELLO) == (None if status == 200 else "it answered 403")
    assert hook.sent < 64 << 20  # what the sockets hold, not 8 GiB


def test_an_answer_that_trickles_is_cut(hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_assets.automation.alerts.delivery._ANSWER_SECONDS", 0.2)
    hook.body = trickle()
    assert Target(1, hook.url()).send(HELLO) is None
    assert hook.titles == [HELLO.title]


def test_headers_that_trickle_are_given_up(hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm_assets.automation.alerts.delivery.ANSWERING", 1.0)
    hook.silence = 2.0
    assert Target(1, hook.url()).send(HELLO) == "no answer in 1 s"


def trickle() -> Iterator[bytes]:
    while True:
        yield b"x"
        time.sleep(0.05)


def test_other_requests_of_the_process_read_all(hook: Webhook) -> None:
    assert Target(1, hook.url()).send(HELLO) is None
    hook.body, hook.length = iter([b"x" * (1 << 20)]), 1 << 20
    answer = requests.post(f"http://127.0.0.1:{hook.port}/", json={"title": "ours"}, timeout=30)
    assert len(answer.content) == 1 << 20


def test_a_server_that_answers_late_gets_a_message_once(hook: Webhook) -> None:
    hook.silence = 4.5  # Apprise's own limit is 4 s
    assert Target(1, hook.url()).send(HELLO) is None
    assert len(hook.attempts) == 1


def test_a_silent_server_is_given_up(silent: Webhook) -> None:
    reason = Target(1, f"{silent.url()}?rto=0.3").send(HELLO)
    assert reason is not None and not silent.received


@pytest.fixture
def silent(hook: Webhook) -> Webhook:
    hook.silence = 2.0
    return hook


def test_long_messages_are_cut_into_several_where_a_service_takes_no_more(mails: MailServer) -> None:
    lines = "\n".join(f"line {n}" for n in range(5000))
    assert Target(1, mails.url).send(Message("t", lines, "warn")) is None
    text = "".join(
        part.get_content()
        for mail in mails.mails
        for part in mail.walk()
        if part.get_content_type() == "text/plain"
    )
    assert text.split() == lines.split()
