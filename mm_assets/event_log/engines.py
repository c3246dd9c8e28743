"""Database engines that are kept open, and never shared with a process that was forked off."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

from sqlalchemy import Engine

_KEPT = 16


class Engines:
    """One engine for each database that is in use, the last `limit` of them.

    Args:
        create: opens the engine of a database.
    """

    def __init__(self, create: Callable[[str], Engine], limit: int = _KEPT) -> None:
        self._create = create
        self._limit = limit
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> Engine:
        """Return the engine of this database."""
        with self._lock:
            engine = self._engines.get(name)
            if engine is None:
                engine = self._engines[name] = self._create(name)
                while len(self._engines) > self._limit:
                    self._engines.popitem(last=False)[1].dispose()
            else:
                self._engines.move_to_end(name)
            return engine

    def dispose(self) -> None:
        """Close all connections that are not in use; those in use when they come back."""
        with self._lock:
            engines, self._engines = self._engines, OrderedDict()
        for engine in engines.values():
            engine.dispose()


_all: weakref.WeakSet[Engines] = weakref.WeakSet()
# A connection must not be closed by another process than the one that opened it: SQLite would give up locks.
_inherited: list[Engine] = []


def _begin_anew() -> None:
    for engines in list(_all):
        _inherited.extend(engines._engines.values())
        engines._reset()


os.register_at_fork(after_in_child=_begin_anew)
