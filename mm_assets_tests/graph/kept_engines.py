"""Dagster's SQLite event log with engines that are kept: it makes one for each statement, and an engine that
is new has to compile what it has compiled before. What lies on the disk is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from sqlalchemy import Engine


@contextmanager
def kept_engines() -> Iterator[None]:
    """Use one engine for each database until the end of the block."""
    engines: dict[str, Engine] = {}
    create = sqlite_event_log.create_engine

    def kept(url: str, **options: Any) -> Engine:
        return engines.get(url) or engines.setdefault(url, create(url, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_event_log, "create_engine", kept)
        yield
