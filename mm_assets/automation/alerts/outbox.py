"""Outbox: messages that a target has not got yet, kept for each target until it has."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mm_assets.automation.alerts.messages import Message
from mm_assets.automation.alerts.targets import Target

MOST = 100  # messages that wait for one target; the oldest give way

# Within a tick: attempts with pauses between them (seconds), for a target that is away for a moment. From
# tick to tick the pause doubles, up to the longest.
_PAUSES = (0.5, 1.0)
_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 3600.0
# Seconds in which a tick sends. Dagster gives a tick a minute.
SENDING = 20.0
_NO_TIME = "no time left"  # the next tick goes on


@dataclass
class Mailbox:
    """What one target has not got yet.

    Args:
        failures: ticks in a row in which nothing could be delivered.
        not_before: no attempt before this time, in seconds since 1970.
        dropped: messages that had to give way.
    """

    waiting: list[Message] = field(default_factory=list)
    failures: int = 0
    not_before: float = 0.0
    dropped: int = 0

    def put(self, messages: Sequence[Message]) -> None:
        """Add messages."""
        self.waiting += messages
        excess = max(0, len(self.waiting) - MOST)
        self.waiting, self.dropped = self.waiting[excess:], self.dropped + excess

    def delivered(self, count: int) -> None:
        """Take out the first messages: the target has got them."""
        if count:
            self.waiting, self.failures, self.not_before, self.dropped = self.waiting[count:], 0, 0.0, 0

    def failed(self, now: float) -> None:
        """Note that the target could not be reached."""
        self.not_before = now + min(_FIRST_PAUSE * 2**self.failures, _LONGEST_PAUSE)
        self.failures += 1

    def to_send(self) -> list[Message]:
        """Return the messages to send, in order; the first says how many had to give way."""
        if not self.dropped or not self.waiting:
            return list(self.waiting)
        note = f"({self.dropped} earlier message(s) were dropped while this target could not be reached.)"
        first = replace(self.waiting[0], body=f"{note}\n{self.waiting[0].body}")
        return [first, *self.waiting[1:]]


@dataclass
class Outbox:
    """The mailboxes by id of the target."""

    mailboxes: dict[str, Mailbox]

    @classmethod
    def stored(cls, values: Mapping[str, Any] | None) -> Outbox:
        """Return it from the values of `plain`."""
        mailboxes = {}
        for key, box in (values or {}).items():
            waiting = [Message(**message) for message in box["waiting"]]
            mailboxes[key] = Mailbox(**{**box, "waiting": waiting})
        return cls(mailboxes)

    def plain(self) -> dict[str, Any]:
        """Return plain values to be stored."""
        return {key: asdict(box) for key, box in self.mailboxes.items()}

    def put(self, targets: Sequence[Target], messages: Sequence[Message]) -> None:
        """Add messages for all targets; a target that is no longer set is forgotten."""
        known = self.mailboxes
        self.mailboxes = {target.id: known.get(target.id, Mailbox()) for target in targets}
        for box in self.mailboxes.values():
            box.put(messages)

    def send(
        self,
        targets: Sequence[Target],
        now: float,
        save: Callable[[], None],
        log: Callable[[str], None],
        seconds: float = SENDING,
    ) -> int:
        """Send what waits, to all targets at the same time, and return how many messages were delivered.

        A target that does not answer in time counts as one that failed. The message may reach it all the
        same, and then once more.

        Args:
            save: called whenever a message was delivered, or a target has failed.
            log: called with a line for each target that failed.
            seconds: how long this may take.
        """
        due = {
            target.id: target
            for target in targets
            if (box := self.mailboxes.get(target.id)) and box.waiting and box.not_before <= now
        }
        answers: queue.Queue[tuple[str, str | None]] = queue.Queue()
        deadline = time.monotonic() + seconds
        for target in due.values():
            work = (target, self.mailboxes[target.id].to_send(), deadline, answers)
            threading.Thread(target=_send_all, args=work, daemon=True).start()
        open_, delivered = {key: len(self.mailboxes[key].waiting) for key in due}, 0
        while open_:
            try:
                key, reason = answers.get(timeout=max(0.01, deadline + 1 - time.monotonic()))
            except queue.Empty:
                for key in open_:
                    self.mailboxes[key].failed(now)
                    log(f"{due[key]}: no answer in {seconds:.0f} s; tried again later")
                save()
                break
            if key not in open_:
                continue
            if reason == _NO_TIME:
                del open_[key]
            elif reason is None:
                self.mailboxes[key].delivered(1)
                delivered, open_[key] = delivered + 1, open_[key] - 1
            else:
                self.mailboxes[key].failed(now)
                log(f"{due[key]}: {reason}; tried again later")
            if key in open_ and (reason is not None or not open_[key]):
                del open_[key]
            save()
        return delivered


def _send_all(
    target: Target,
    messages: Sequence[Message],
    deadline: float,
    answers: queue.Queue[tuple[str, str | None]],
) -> None:
    """Send messages in order, up to the first that cannot be delivered; put an answer for each."""
    for message in messages:
        reason = target.send(message)
        for pause in _PAUSES:
            if reason is None or time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
            reason = target.send(message)
        answers.put((target.id, reason))
        if reason is not None:
            return
        if time.monotonic() > deadline:
            answers.put((target.id, _NO_TIME))
            return
