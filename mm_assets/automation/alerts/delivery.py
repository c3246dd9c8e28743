"""Delivery of alerts: targets, and an outbox with the messages that each has not got yet.

Apprise sends to the targets. Their URLs hold secrets, and are never shown. The outbox keeps a message for
each target until that has got it.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from mm_assets.automation.alerts import Message
from mm_assets.model.errors import explained
from mm_assets.settings_file import given_settings

if TYPE_CHECKING:
    from apprise import NotifyBase
    from requests import PreparedRequest, Response


# Kinds of targets whose URL has the name of a server where others have a token.
_WITH_SERVER = ("json", "xml", "form", "mailto")
_SHOWN_REASON = 160  # characters
ANSWERING = 15.0  # seconds that a target has for one message
# Of these, until its answer begins. Apprise's own 4 s are too few: what arrives is sent again.
_READING = 10.0
# What is read of the answer of a web server at most, from the end of its headers on.
_ANSWER_BYTES, _ANSWER_SECONDS = 64 << 10, 5.0


@dataclass(frozen=True)
class Target:
    """One Apprise URL.

    Args:
        number: its place in MM_ALERTS, from 1.
    """

    number: int
    url: str = field(repr=False)

    @property
    def id(self) -> str:
        """Identifies the target in stored state, without its URL."""
        return hashlib.blake2b(self.url.encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        """Return number, kind and, of a server of one's own, its address; nothing that could be a secret."""
        schema, _, rest = self.url.partition("://")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{1,19}", schema) or not rest:
            return f"target {self.number}"
        server = ""
        if schema.lower().rstrip("s") in _WITH_SERVER:
            netloc = re.split(r"[/?#]", rest, maxsplit=1)[0]
            match = re.fullmatch(r"(?:.*@)?([A-Za-z0-9.-]+(?::\d+)?)", netloc)
            server = match[1] if match else ""
        return f"target {self.number} ({schema.lower()}://{server}…)"

    def send(self, message: Message) -> str | None:
        """Send a message; return None when it was delivered, else the reason in one line.

        A target that comes to no end counts as one that failed; the message may reach it all the same.
        """
        answers: list[str | None] = []

        def take() -> None:
            answers.append(self._answer(message))

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        thread.join(ANSWERING)
        return answers[0] if answers else f"no answer in {ANSWERING:.0f} s"

    def _answer(self, message: Message) -> str | None:
        with _notes() as lines:
            try:
                service = self._service()
                if service is None:
                    return f"no URL that Apprise knows; see {given_settings().place('MM_ALERTS')}"
                if self._notified(service, message):
                    return None
            except ImportError as error:
                return str(explained(error))
            except Exception as error:  # noqa: BLE001  (a plug-in of others; no target may fail a tick)
                lines.append(f"{type(error).__name__}: {error}")
        return self._reason(lines)

    def _service(self) -> NotifyBase | None:
        from apprise import Apprise, OverflowMode

        _bound_answers()
        service = Apprise.instantiate(self.url, suppress_exceptions=True)
        if service is not None and "rto=" not in self.url:
            service.socket_read_timeout = _READING
        if service is not None and "overflow=" not in self.url:
            service.overflow_mode = OverflowMode.SPLIT  # else a service refuses what is too long for it
        return service

    def _notified(self, service: NotifyBase, message: Message) -> bool:
        from apprise import Apprise, NotifyFormat, NotifyType

        levels = {
            "error": NotifyType.FAILURE,
            "warn": NotifyType.WARNING,
            "clear": NotifyType.SUCCESS,
            "test": NotifyType.INFO,
        }
        apprise = Apprise()
        apprise.add(service)
        return bool(
            apprise.notify(
                message.body,
                title=message.title,
                notify_type=levels[message.level],
                body_format=NotifyFormat.TEXT,
            )
        )

    def _reason(self, lines: Sequence[str]) -> str:
        """Return why a message was not delivered, without any part of the URL."""
        text = next((line for line in lines if line.strip()), "")
        if code := re.search(r"error=(\d{3})\b", text):
            return f"it answered {code[1]}"
        shown = str(self)
        for part in sorted(
            re.split(r"[^A-Za-z0-9._%+-]+", self.url.partition("://")[2]), key=len, reverse=True
        ):
            if len(part) >= 3 and part not in shown:
                text = text.replace(part, "****")
        text = " ".join(text.split())[:_SHOWN_REASON]
        return text or "no connection, or no answer in time"


def targets(urls: Sequence[str]) -> list[Target]:
    """Return the targets of these Apprise URLs."""
    return [Target(number, url) for number, url in enumerate(urls, 1)]


@cache
def _bound_answers() -> None:
    """Have `requests` read the start of an answer only, where it is Apprise that asks.

    Apprise calls ``requests.post`` and its like, which read all of an answer, and has no other way in.
    """
    import requests.sessions
    from requests.adapters import HTTPAdapter

    class BoundedAdapter(HTTPAdapter):
        def send(self, request: PreparedRequest, stream: bool = False, *more: Any, **named: Any) -> Response:
            if _lines.get() is None:
                return super().send(request, stream, *more, **named)
            response = super().send(request, True, *more, **named)
            response._content = _start_of(response)
            response.close()
            return response

    requests.sessions.HTTPAdapter = BoundedAdapter  # type: ignore[attr-defined, misc]


def _start_of(response: Response) -> bytes:
    from urllib3.exceptions import HTTPError

    deadline = time.monotonic() + _ANSWER_SECONDS
    start = b""
    with suppress(OSError, HTTPError):  # the status has come, and decides
        while len(start) < _ANSWER_BYTES and time.monotonic() < deadline:
            if not (part := response.raw.read1(_ANSWER_BYTES, decode_content=True)):
                break
            start += part
    return start


@contextmanager
def _notes() -> Iterator[list[str]]:
    """Collect what Apprise logs about one message, and keep it from other logs: it may name the URL."""
    logger = logging.getLogger("apprise")
    logger.propagate = False
    if _HANDLER not in logger.handlers:
        logger.addHandler(_HANDLER)
    lines: list[str] = []
    token = _lines.set(lines)
    try:
        yield lines
    finally:
        _lines.reset(token)


class _Collector(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        lines = _lines.get()
        if lines is not None:
            lines.append(record.getMessage())


# Of the context, not the thread: Apprise hands messages on to threads of its own, with a copy of the context.
_lines: ContextVar[list[str] | None] = ContextVar("apprise_lines", default=None)
_HANDLER = _Collector(logging.WARNING)


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
