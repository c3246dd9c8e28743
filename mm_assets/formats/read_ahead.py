"""Reading of remote files at the store's speed: parts ahead of a sequential reader, exact ranges for others.

An object store answers a request after some milliseconds, at the speed of one connection. Several requests at
once, for neighbouring parts, are as fast as the network.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, NamedTuple

from fsspec.caching import BaseCache, register_cache

PART_BYTES = 8 << 20
_PARTS_AHEAD = 3  # with the one that is being read 32 MiB, with the range given to the caller a little more
_LEAST_BYTES = 1 << 20  # takes a store hardly longer than a few bytes
_RANGES_KEPT = 4


class _Range(NamedTuple):
    start: int
    data: bytes

    def has(self, position: int) -> bool:
        return self.start <= position < self.start + len(self.data)

    def between(self, start: int, stop: int) -> bytes:
        return self.data[start - self.start : stop - self.start]


class ReadAhead(BaseCache):
    """The bytes of one open remote file; fsspec calls it a cache, by the name that `open_binary` gives.

    A reader that has read a little from the start of the file, or the length of a part anywhere, without a
    gap, is sequential: the next parts are requested while it works on one. Other reads get their very range,
    a long one in several parts at once; what follows a small one is kept for the next. One thread reads at a
    time, and a process that was forked off begins anew.
    """

    name: ClassVar[str] = "mm_assets_read_ahead"

    def __init__(self, blocksize: int, fetcher: Callable[[int, int], bytes], size: int) -> None:
        super().__init__(blocksize, fetcher, size)
        self._least = min(_LEAST_BYTES, blocksize)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._threads: ThreadPoolExecutor | None = None
        self._run = self._position = 0  # where reading without a gap began, and where it is
        self._part = _Range(0, b"")  # the one that a sequential reader works on
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()  # the parts behind it, by their start
        self._small: deque[_Range] = deque(maxlen=_RANGES_KEPT)

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        start, stop = start or 0, self.size if stop is None else min(stop, self.size)
        if start >= stop:
            return b""
        with self._lock:
            if os.getpid() != self._pid:  # the threads are the parent's
                self._pid, self._threads = os.getpid(), None
                self._ahead.clear()
            return self._between(start, stop)

    def _between(self, start: int, stop: int) -> bytes:
        if start != self._position:
            self._run = start
        self._position = stop
        is_sequential = stop - self._run > (self._least if self._run == 0 else self.blocksize)
        pieces = []
        while start < stop:
            found = next((known for known in (self._part, *self._small) if known.has(start)), None)
            if found is None:
                found = self._next_part(start) if is_sequential else self._range(start, stop)
            pieces.append(found.between(start, stop))
            start += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """End the threads; requests under way are waited for."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._threads, self._part = None, _Range(0, b"")
        self._ahead.clear()
        self._small.clear()

    def _range(self, start: int, stop: int) -> _Range:
        if stop - start < self._least:
            self._small.append(_Range(start, self._read(start, min(start + self._least, self.size))))
            return self._small[-1]
        parts = [(at, min(at + self.blocksize, stop)) for at in range(start, stop, self.blocksize)]
        if len(parts) == 1:
            return _Range(start, self._read(start, stop))
        return _Range(start, b"".join(self._pool().map(self._read, *zip(*parts, strict=True))))

    def _next_part(self, start: int) -> _Range:
        """Return the part that begins at ``start``, once those behind it are requested, too."""
        self._part = _Range(0, b"")  # not held beside those
        if not self._ahead or self._ahead[0][0] != start:
            self._ahead.clear()
            self._request(start)
        while len(self._ahead) <= _PARTS_AHEAD and (end := self._ahead[-1][0] + self.blocksize) < self.size:
            self._request(end)
        self._part = _Range(start, self._ahead.popleft()[1].result())
        return self._part

    def _request(self, start: int) -> None:
        end = min(start + self.blocksize, self.size)
        self._ahead.append((start, self._pool().submit(self._read, start, end)))

    def _read(self, start: int, stop: int) -> bytes:
        """Return a range from the store.

        Raises:
            OSError: the store gave fewer bytes, or more.
        """
        data = self.fetcher(start, stop)
        if len(data) != stop - start:
            raise OSError(f"the store gave {len(data)} bytes of the {stop - start} from byte {start} on")
        return data

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_PARTS_AHEAD + 1, thread_name_prefix="mm-read-ahead")
        return self._threads


register_cache(ReadAhead, clobber=True)
