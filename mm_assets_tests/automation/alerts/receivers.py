"""Receivers of alerts on loopback: a web server that takes JSON, and a mail server."""

from __future__ import annotations

import email
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message as Mail
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from mm_assets_tests.free_port import free_port


@dataclass
class Webhook:
    """A web server, what it was sent, and how it answers.

    Args:
        answers: statuses of the next answers; 200 when there are no more.
        silence: seconds before an answer.
        body: parts of the answers, as long as somebody reads; None: an empty one, which is whole.
        length: what their headers say.
        sent: bytes of bodies that were sent.
    """

    port: int = 0
    attempts: list[dict[str, Any]] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    silence: float = 0.0
    body: Iterator[bytes] | None = None
    length: int = 8 << 30
    sent: int = 0

    def url(self, secret: str = "hook") -> str:
        return f"json://127.0.0.1:{self.port}/{secret}"

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.received]

    @property
    def told(self) -> str:
        """All messages in full, for a test that fails: pytest shortens whatever is no text."""
        return "\n\n".join("{type}: {title}\n{message}".format_map(message) for message in self.received)


@contextmanager
def webhook(port: int = 0) -> Iterator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hook.attempts.append(message)
            status = hook.answers.pop(0) if hook.answers else 200
            time.sleep(hook.silence)
            body, length = hook.body, hook.length  # now: a test may set the next answer once it has this one
            if status == 200:
                hook.received.append(message)
            self.send_response(status)
            self.send_header("Content-Length", "0" if body is None else str(length))
            self.end_headers()
            with suppress(ConnectionError):
                for part in body or ():
                    self.wfile.write(part)
                    hook.sent += len(part)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        hook.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()


@dataclass
class MailServer:
    port: int
    mails: list[Mail]

    @property
    def url(self) -> str:
        return (
            f"mailto://robot:mailsecret@example.com?smtp=127.0.0.1&port={self.port}"
            "&mode=insecure&from=robot@example.com&to=team@example.com"
        )


@contextmanager
def mail_server() -> Iterator[MailServer]:
    mails: list[Mail] = []

    class Handler:
        async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
            content = envelope.content
            assert isinstance(content, bytes)
            mails.append(email.message_from_bytes(content, policy=default))
            return "250 OK"

    controller = Controller(
        Handler(),
        hostname="127.0.0.1",
        port=free_port(),
        auth_require_tls=False,
        authenticator=lambda *_: AuthResult(success=True),
    )
    controller.start()
    try:
        yield MailServer(controller.port, mails)
    finally:
        controller.stop()
