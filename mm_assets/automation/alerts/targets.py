"""Targets of alerts, which Apprise sends to. Their URLs hold secrets, and are never shown."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from mm_assets.automation.alerts.messages import Message
from mm_assets.interleaved.extras import explained
from mm_assets.settings_file import given_settings

if TYPE_CHECKING:
    from apprise import NotifyBase
    from requests import PreparedRequest, Response

# Kinds of targets whose URL has the name of a server where others have a token.
_WITH_SERVER = ("json", "xml", "form", "mailto")
_SHOWN_REASON = 160  # characters
ANSWERING = 15.0  # seconds that a target has for one message
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
