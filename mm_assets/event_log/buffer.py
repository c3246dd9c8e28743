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
from typing import Any, Generic, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_ITEMS = 500
MAX_SECONDS = 0.5


class WriteBuffer(Generic[T]):
    """Items in the order in which they came, until `write` has taken them.

    Nothing is lost by an error: what `write` raises reaches whoever adds or flushes next, and the items stay,
    to be tried again. A process that forks keeps its items, the new process begins without any.

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
        self._failed = False
        self._lock = threading.Lock()  # of the fields above
        self._writing = threading.Lock()
        self._writer: int | None = None  # the thread that holds `_writing`

    def add(self, item: T) -> None:
        """Keep an item; write all if it is time.

        Raises:
            Exception: what `write` raises. The item is kept all the same.
        """
        with self._lock:
            self._items.append(item)
            is_due = len(self._items) >= self._max_items or self._failed
            if not is_due:
                self._start_timer()
        if is_due:
            self.flush()

    def flush(self) -> None:
        """Write all items; nothing while `write` of this very thread is at work.

        Raises:
            Exception: what `write` raises. The items are kept.
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
                self._failed = False
            except BaseException:
                with self._lock:
                    self._items = items + self._items
                    self._failed = True
                    self._start_timer()
                raise
            finally:
                self._writer = None

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._max_seconds, self._flush_late)
            self._timer.daemon = True
            self._timer.start()

    def _flush_late(self) -> None:
        with self._lock:
            self._timer = None
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001  (raised again in whoever adds or flushes next)
            log.error("events wait in memory, they cannot be written: %s", error)


_buffers: weakref.WeakSet[WriteBuffer[Any]] = weakref.WeakSet()


def _flush_all() -> None:
    for buffer in list(_buffers):
        buffer.flush()


def _begin_anew() -> None:
    for buffer in list(_buffers):
        buffer._reset()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_begin_anew)
