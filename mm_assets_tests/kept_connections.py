"""Dagster's SQLite event log on connections that are kept: it makes an engine and connects for each statement,
which is most of what a run of small shards costs. What lies on the disk is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from sqlalchemy import Engine
from sqlalchemy.pool import StaticPool


@contextmanager
def kept_connections() -> Iterator[None]:
    """Use one connection for each database until the end of the block."""
    engines: dict[str, Engine] = {}
    create, dispose = sqlite_event_log.create_engine, Engine.dispose

    def kept(url: str, **options: Any) -> Engine:
        if url not in engines:
            options["connect_args"] = {**options["connect_args"], "check_same_thread": False}
            engines[url] = create(url, **{**options, "poolclass": StaticPool})
        return engines[url]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_event_log, "create_engine", kept)
        patch.setattr(Engine, "dispose", lambda engine: None)
        yield
    for engine in engines.values():
        dispose(engine)
