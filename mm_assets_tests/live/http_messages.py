"""HTTP/1.1 messages as bytes: heads, and bodies that are passed on without being held."""

from __future__ import annotations

from asyncio import StreamReader
from collections.abc import AsyncIterator
from dataclasses import dataclass

_PIECE = 64 << 10


@dataclass(frozen=True)
class Head:
    """A start line and headers, as received, with the empty line behind them."""

    raw: bytes

    @property
    def start(self) -> str:
        return self.raw.split(b"\r\n", 1)[0].decode("latin-1")

    def header(self, name: str) -> str:
        """The value of a header; empty if it is missing."""
        for line in self.raw.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.strip().lower() == name:
                return value.strip()
        return ""

    @property
    def method(self) -> str:
        return self.start.split(" ")[0]

    @property
    def target(self) -> str:
        return self.start.split(" ")[1]

    @property
    def status(self) -> int:
        return int(self.start.split(" ")[1])

    @property
    def length(self) -> int:
        return int(self.header("content-length") or 0)

    @property
    def is_chunked(self) -> bool:
        return self.header("transfer-encoding").lower() == "chunked"

    @property
    def ends_connection(self) -> bool:
        return self.header("connection").lower() == "close"


async def read_head(stream: StreamReader) -> Head | None:
    """The next head; None when the connection has ended."""
    raw = b""
    while not raw.endswith(b"\r\n\r\n"):
        line = await stream.readline()
        if not line:
            return None
        raw += line
    return Head(raw)


async def pieces(head: Head, stream: StreamReader) -> AsyncIterator[bytes]:
    """The body behind a head, as received: chunks keep their sizes and signatures."""
    if not head.is_chunked:
        async for piece in _exactly(head.length, stream):
            yield piece
        return
    while True:
        line = await stream.readline()
        yield line
        size = int(line.split(b";")[0], 16)
        async for piece in _exactly(size, stream):
            yield piece
        if size == 0:
            break
        yield await stream.readline()
    while True:  # trailers, and the empty line behind them
        line = await stream.readline()
        yield line
        if line in (b"\r\n", b""):
            return


async def _exactly(size: int, stream: StreamReader) -> AsyncIterator[bytes]:
    while size > 0:
        piece = await stream.readexactly(min(size, _PIECE))
        size -= len(piece)
        yield piece
