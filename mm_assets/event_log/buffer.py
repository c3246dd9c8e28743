"""Buffer of things that are written together: once enough have gathered, or the first has waited enough.

Knows neither Dagster nor databases.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from mm_assets.interleaved.errors import MmAssetsError

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_ITEMS = 500
MAX_SECONDS = 0.5
MAX_BACK_OFF = 30.0  # seconds between two attempts after many errors


class NotWritten(MmAssetsError, OSError):
    """What waits could not be written. It is kept, and tried again.

    Args:
        count: how many events wait.
        reason: one line.
    """

    def __init__(self, count: int, reason: str) -> None:
        super().__init__(reason)
        self.count = count
        self.reason = reason

    def __str__(self) -> str:
        return f"events cannot be written, {self.count} wait in memory: {self.reason}"


class WriteBuffer(Generic[T]):
    """Items in the order in which they came, until `write` has taken them.

    Nothing is lost by an error: the items stay, and are tried again after half a second, then after twice as
    long each time, and whenever somebody flushes. One line of the log, and one of those who add, are told of
    it; whoever flushes is told each time. A process that forks keeps its items, the new process begins
    without any.

    Args:
        write: writes items in their order. After an error it gets the same items again, with those that came
            since.
        max_items: write when there are so many.
        max_seconds: and when the first has waited for so long.
    """

    def __init__(
        self, write: Callable[[list[T]], None], max_items: int = MAX_ITEMS, max_seconds: float = MAX_SECONDS
    ) -> None:
        self._write = write
        self._max_items = max_items
        self._max_seconds = max_seconds
        self._reset()
        _buffers.add(self)

    def _reset(self) -> None:
        self._items: list[T] = []
        self._timer: threading.Timer | None = None
        self._failures = 0  # since something was written
        self._is_told = False  # whether somebody who adds knows of them
        self._lock = threading.Lock()  # of the fields above
        self._writing = threading.Lock()
        self._writer: int | None = None  # the thread that holds `_writing`

    def add(self, item: T) -> None:
        """Keep an item; write all if it is time.

        Raises:
            NotWritten: what waits cannot be written; raised once until it can. The item is kept all the same.
        """
        with self._lock:
            self._items.append(item)
            # Items that cannot be written are not tried again for each that comes: only to tell of it.
            is_due = not self._is_told if self._failures else len(self._items) >= self._max_items
            if not is_due:
                self._start_timer()
        if is_due:
            try:
                self.flush()
            except NotWritten:
                with self._lock:
                    self._is_told = self._failures > 0
                raise

    def flush(self) -> None:
        """Write all items; nothing while `write` of this very thread is at work.

        Raises:
            NotWritten: what waits cannot be written. The items are kept.
        """
        if self._writer == threading.get_ident() or not (self._items or self._writing.locked()):
            return
        with self._writing:  # who comes to read waits for a writing thread
            with self._lock:
                items, self._items = self._items, []
            if not items:
                return
            self._writer = threading.get_ident()
            try:
                self._write(items)
            except Exception as error:
                raise self._keep(items, error) from error
            except BaseException:
                self._keep(items)
                raise
            finally:
                self._writer = None
            self._recover(len(items))

    def _keep(self, items: list[T], error: Exception | None = None) -> NotWritten:
        """Put items back that were not written. Return what to raise; the first time it is logged, too."""
        # The further lines of a database's error are the statement, and the values of hundreds of rows.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        with self._lock:
            self._items = items + self._items
            if error is not None:
                self._failures += 1
            self._start_timer()
            problem = NotWritten(len(self._items), reason)
        if error is not None and self._failures == 1:
            log.error("%s", problem)
        return problem

    def _recover(self, count: int) -> None:
        with self._lock:
            failures, self._failures, self._is_told = self._failures, 0, False
        if failures:
            log.warning("events can be written again, %d had waited in memory", count)

    def _start_timer(self) -> None:
        if self._timer is None:
            seconds = self._max_seconds
            if self._failures:
                seconds = max(seconds, min(seconds * 2 ** min(self._failures - 1, 30), MAX_BACK_OFF))
            self._timer = threading.Timer(seconds, self._flush_late)
            self._timer.daemon = True
            self._timer.start()

    def _flush_late(self) -> None:
        with self._lock:
            self._timer = None
        with suppress(NotWritten):  # it is logged, and raised in whoever adds or flushes next
            self.flush()

    def close(self) -> None:
        """Write all items at the end of the process; what cannot be written is told."""
        try:
            self.flush()
        except NotWritten as error:
            log.error("the process ends, %d events are lost: %s", error.count, error.reason)


_buffers: weakref.WeakSet[WriteBuffer[Any]] = weakref.WeakSet()


def _flush_all() -> None:
    for buffer in list(_buffers):
        buffer.close()


def _begin_anew() -> None:
    for buffer in list(_buffers):
        buffer._reset()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_begin_anew)
