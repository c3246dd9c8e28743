"""A proxy in front of an S3 server that counts requests, and spoils some as real stores and networks do.

Signatures cover the header ``Host``, so it is passed on as the client wrote it.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from mm_assets_tests.live.http_messages import Head, pieces, read_head

SLOW_DOWN = "503 SlowDown"
INTERNAL_ERROR = "500 InternalError"
RESET = "connection reset"
CUT = "cut body"
SILENCE = "silence"
ANSWER_LOST = "answer lost"
KINDS = (SLOW_DOWN, INTERNAL_ERROR, RESET, CUT, SILENCE, ANSWER_LOST)

_CHANGING = ("PUT", "POST", "DELETE")
_REASONS = {403: "Forbidden", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}
_LINGER_NOT = struct.pack("ii", 1, 0)  # closing then sends a reset


@dataclass
class Faults:
    """What is to go wrong.

    Args:
        rate: share of the requests.
        kinds: one of these is drawn for each.
        methods: only these requests.
        paths: only those whose path and query match this expression.
        silences: at most so many requests without an answer: each costs its client a time-out.
        at_most: so many faults in all.
        after: the first requests, that many, are spared.
    """

    rate: float = 0.0
    kinds: tuple[str, ...] = tuple(kind for kind in KINDS if kind != SILENCE)
    methods: frozenset[str] = frozenset(("GET", "HEAD", *_CHANGING))
    paths: str = ""
    silences: int = 0
    at_most: int | None = None
    after: int = 0
    seed: int = 0
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def draw(self, head: Head, number: int, happened: Mapping[str, int]) -> str | None:
        """The fault of the request of this number; None for most."""
        is_hit = self._random.random() < self.rate and number > self.after
        kind = self._random.choice(self.kinds)
        if not is_hit or head.method not in self.methods or not re.search(self.paths, unquote(head.target)):
            return None
        if self.at_most is not None and sum(happened.values()) >= self.at_most:
            return None
        if kind == SILENCE and happened.get(SILENCE, 0) >= self.silences:
            return RESET
        return RESET if kind == CUT and head.method != "GET" else kind


@dataclass(frozen=True)
class Refusal:
    """An answer that all requests of some methods get, for paths that match an expression."""

    status: int
    code: str
    message: str
    methods: frozenset[str] = frozenset(("GET", "HEAD", *_CHANGING))
    paths: str = ""

    def is_for(self, head: Head) -> bool:
        return head.method in self.methods and re.search(self.paths, head.target) is not None


EXPIRED = Refusal(403, "ExpiredToken", "The provided token has expired.")
READ_ONLY = Refusal(403, "AccessDenied", "Access Denied.", frozenset(_CHANGING))
# SeaweedFS makes the bucket of an object that is put.
MISSING = Refusal(404, "NoSuchBucket", "The specified bucket does not exist.", paths="^/no-such-bucket")
DOWN = Refusal(503, "SlowDown", "Please reduce your request rate.")


@dataclass(frozen=True)
class Pace:
    """Speed of a store that is far away: seconds before each answer, bytes a second of each connection."""

    latency: float
    bytes_per_second: float

    async def keep(self, nbytes: int) -> None:
        """Wait for as long as so many bytes take."""
        await asyncio.sleep(nbytes / self.bytes_per_second)


class FaultyProxy:
    """Use it by `faulty_proxy`. ``faults``, ``refusal`` and ``pace`` may be changed at any time.

    ``requests`` counts what clients sent, by `kind_of`, ``happened`` the faults, by kind, and ``happened_to``
    the faults by kind of request.
    """

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._server = (str(parts.hostname), int(parts.port or 80))
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.faults = Faults()
        self.refusal: Refusal | None = None
        self.pace = Pace(0.0, math.inf)
        self.requests: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        self.happened_to: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="faulty-proxy", daemon=True)
        self._thread.start()

    def reset(self, faults: Faults | None = None) -> None:
        """Count from zero, with other faults or none."""
        self.faults = faults or Faults()
        self.refusal = None
        self.requests, self.happened, self.happened_to = Counter(), Counter(), Counter()

    def close(self) -> None:
        """End all connections and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._listening.setblocking(False)
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._listening))
        self._loop.run_forever()
        server.close()
        for connection in self._connections:
            connection.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._connections, return_exceptions=True))
        self._loop.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self._loop.create_task(self._serve(_Client(reader, writer)))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, client: _Client) -> None:
        """Answer the requests of one connection, over one connection to the server."""
        server: _Connection | None = None
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while (head := await read_head(client.reader)) is not None:
                    kind = self._count(head)
                    if self.refusal is not None and self.refusal.is_for(head):
                        await client.refuse(head, self.refusal)
                        continue
                    if server is None or server.reader.at_eof():  # it ends connections that are idle
                        server = _Connection(*await asyncio.open_connection(*self._server))
                    if not await self._handle(head, kind, client, server):
                        break
        finally:
            for connection in filter(None, (client, server)):
                connection.writer.close()

    def _count(self, head: Head) -> str | None:
        request = kind_of(head)
        self.requests[request] += 1
        kind = self.faults.draw(head, sum(self.requests.values()), self.happened)
        if kind is not None:
            self.happened[kind] += 1
            self.happened_to[f"{request}: {kind}"] += 1
        return kind

    async def _handle(self, head: Head, kind: str | None, client: _Client, server: _Connection) -> bool:
        """Answer one request; False when the connection is over."""
        if kind == RESET:
            client.reset()
            return False
        if kind == SLOW_DOWN:
            await client.refuse(head, DOWN)
            return True
        if kind == INTERNAL_ERROR:
            await client.refuse(head, Refusal(500, "InternalError", "We encountered an internal error."))
            return True
        await client.go_on(head)
        if kind == SILENCE:
            await client.reader.read()  # until the client has had enough
            return False
        await asyncio.sleep(self.pace.latency)
        answer = await server.forward(head, client.reader, self.pace)
        if kind == ANSWER_LOST:
            if head.method != "HEAD":
                async for _ in pieces(answer, server.reader):
                    pass
            client.reset()
            return False
        if kind == CUT:
            client.writer.write(answer.raw)
            if not answer.is_chunked and answer.length > 1:
                client.writer.write(await server.reader.readexactly(answer.length // 2))
            await client.writer.drain()
            return False
        client.writer.write(answer.raw)
        if head.method != "HEAD" and answer.status not in (204, 304):
            async for piece in pieces(answer, server.reader):
                client.writer.write(piece)
                await client.writer.drain()
                await self.pace.keep(len(piece))
        await client.writer.drain()
        return not (answer.ends_connection or head.ends_connection)


@dataclass(frozen=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def forward(self, head: Head, body: asyncio.StreamReader, pace: Pace) -> Head:
        """Pass a request on, and return the head of its answer."""
        self.writer.write(head.raw)
        async for piece in pieces(head, body):
            self.writer.write(piece)
            await self.writer.drain()
            await pace.keep(len(piece))
        await self.writer.drain()
        answer = await read_head(self.reader)
        while answer is not None and answer.status < 200:  # 100 Continue: the client has gone on already
            answer = await read_head(self.reader)
        if answer is None:
            raise ConnectionError("the server has closed the connection")
        return answer


class _Client(_Connection):
    async def go_on(self, head: Head) -> None:
        if head.header("expect").lower() == "100-continue":
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self.writer.drain()

    async def refuse(self, head: Head, refusal: Refusal) -> None:
        """Answer with an error, as S3 writes it, after the whole request was read."""
        await self.go_on(head)
        async for _ in pieces(head, self.reader):
            pass
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{refusal.code}</Code><Message>{refusal.message}</Message>"
            f"<Resource>{urlsplit(head.target).path}</Resource><RequestId>1</RequestId></Error>"
        ).encode()
        body = b"" if head.method == "HEAD" else text
        start = f"HTTP/1.1 {refusal.status} {_REASONS[refusal.status]}\r\nContent-Type: application/xml\r\n"
        self.writer.write(f"{start}Content-Length: {len(text)}\r\n\r\n".encode() + body)
        await self.writer.drain()

    def reset(self) -> None:
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.writer.transport.abort()


def kind_of(head: Head) -> str:
    """The S3 operation of a request, in the words of a bill: "GET", "PUT", "LIST", "PUT part" …"""
    parts = urlsplit(head.target)
    query = parse_qs(parts.query, keep_blank_values=True)
    if head.method == "GET" and ("list-type" in query or not parts.path.strip("/").count("/")):
        return "LIST"
    if "uploads" in query:
        return "POST multipart"
    if "partNumber" in query:
        return "PUT part"
    if "uploadId" in query:
        return {"POST": "POST complete", "DELETE": "DELETE multipart"}.get(head.method, head.method)
    return "POST delete" if "delete" in query else head.method


@contextmanager
def faulty_proxy(server: str) -> Iterator[FaultyProxy]:
    """A proxy before the server of this URL, without faults at first."""
    proxy = FaultyProxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
