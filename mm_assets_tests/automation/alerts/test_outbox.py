"""Messages wait for a target that is away; the others get theirs."""

from __future__ import annotations

import pytest

from mm_assets.automation.alerts import Message
from mm_assets.automation.alerts.delivery import MOST, Mailbox, Outbox, Target
from mm_assets_tests.automation.alerts.receivers import Webhook, webhook
from mm_assets_tests.free_port import free_port


def messages(count: int, first: int = 0) -> list[Message]:
    return [Message(f"m{n}", f"body {n}", "error") for n in range(first, first + count)]


class Sender:
    """An outbox that is stored and read again before each use, as ticks do."""

    def __init__(self) -> None:
        self.stored: dict[str, object] = {}
        self.saved: list[list[int]] = []
        self.lines: list[str] = []

    def send(self, targets: list[Target], new: list[Message], now: float = 0.0, seconds: float = 20.0) -> int:
        outbox = Outbox.stored(self.stored)
        outbox.put(targets, new)

        def save() -> None:
            self.stored = outbox.plain()
            self.saved.append([len(box.waiting) for box in outbox.mailboxes.values()])

        delivered = outbox.send(targets, now, save, self.lines.append, seconds)
        save()
        return delivered


def test_a_short_outage_is_over_within_the_tick(hook: Webhook) -> None:
    hook.answers = [503, 503]
    sender = Sender()
    assert sender.send([Target(1, hook.url())], messages(2)) == 2
    assert hook.titles == ["m0", "m1"]
    assert sender.lines == []


def test_a_dead_target_neither_blocks_nor_doubles_the_others(hook: Webhook) -> None:
    port = free_port()
    targets = [Target(1, f"json://127.0.0.1:{port}/s3cret"), Target(2, hook.url())]
    sender = Sender()
    assert sender.send(targets, messages(2)) == 2
    assert sender.send(targets, messages(1, first=2), now=1000) == 1
    assert hook.titles == ["m0", "m1", "m2"]
    assert len(sender.lines) == 2
    assert all(line.startswith(f"target 1 (json://127.0.0.1:{port}…): ") for line in sender.lines)
    with webhook(port) as back:
        assert sender.send(targets, [], now=2000) == 3
    assert back.titles == hook.titles == ["m0", "m1", "m2"]


def test_each_delivery_is_saved_before_the_next(hook: Webhook) -> None:
    sender = Sender()
    sender.send([Target(1, hook.url())], messages(3))
    assert sender.saved[:3] == [[2], [1], [0]]


def test_pauses_double_up_to_an_hour() -> None:
    box, pauses = Mailbox(), []
    for _ in range(10):
        box.failed(now=0)
        pauses.append(box.not_before)
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_no_attempt_is_made_before_its_time(hook: Webhook) -> None:
    hook.answers = [503] * 3
    sender, target = Sender(), Target(1, hook.url())
    assert sender.send([target], messages(1)) == 0
    assert len(hook.attempts) == 3
    assert sender.send([target], [], now=29) == 0
    assert len(hook.attempts) == 3
    assert sender.send([target], [], now=30) == 1


def test_the_oldest_give_way_and_that_is_told(hook: Webhook) -> None:
    hook.answers = [503] * 3
    sender, target = Sender(), Target(1, hook.url())
    sender.send([target], messages(MOST))
    assert sender.send([target], messages(2, first=MOST), now=100) == MOST
    assert hook.titles == [f"m{n}" for n in range(2, MOST + 2)]
    note, body = hook.received[0]["message"].splitlines()
    assert (note.startswith("(2 earlier message(s) were dropped"), body) == (True, "body 2")
    assert hook.received[1]["message"] == "body 3"


def test_a_target_that_hangs_holds_up_no_tick(hook: Webhook) -> None:
    hook.silence = 3.0
    sender = Sender()
    assert sender.send([Target(1, hook.url())], messages(1), seconds=0.1) == 0
    assert [line.partition("…): ")[2] for line in sender.lines] == ["no answer in 0 s; tried again later"]
    assert sender.saved[-1] == [1]


def test_a_tick_sends_only_for_so_long_and_the_next_goes_on(
    hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.silence = 0.3
    sender, target = Sender(), Target(1, hook.url())
    first = sender.send([target], messages(4), seconds=0.5)
    assert 0 < first < 4
    assert sender.send([target], [], now=1) == 4 - first
    assert hook.titles == ["m0", "m1", "m2", "m3"]
    assert sender.lines == []


def test_a_target_that_is_no_longer_set_is_forgotten_and_a_new_one_gets_what_is_new(hook: Webhook) -> None:
    hook.answers = [503] * 3
    sender = Sender()
    sender.send([Target(1, hook.url("old"))], messages(1))
    assert sender.send([Target(1, hook.url("new"))], messages(1, first=1), now=100) == 1
    assert hook.titles == ["m1"]
    assert len(sender.stored) == 1
