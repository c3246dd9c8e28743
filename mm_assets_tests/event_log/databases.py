"""Event logs of both kinds of database, as stock class and as ours, over one Dagster home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import dagster as dg

from mm_assets_tests.kept_dagster import kept_engines

STOCK, OURS = "stock", "ours"


@contextmanager
def open_instance(
    home: Path, kind: str, postgres_url: str | None = None, **settings: Any
) -> Iterator[dg.DagsterInstance]:
    """Open the instance of a home with the stock class or with ours, for the event log alone.

    Args:
        settings: further ones of `dagster.yaml`.
    """
    home.mkdir(parents=True, exist_ok=True)
    overrides = {"event_log_storage": _storage(home, kind, postgres_url), **settings}
    with ExitStack() as opened:
        opened.enter_context(kept_engines())
        with open(home / "lock", "w") as lock:  # each process writes dagster.yaml, and reads it
            flock(lock, LOCK_EX)
            instance = opened.enter_context(dg.instance_for_test(temp_dir=str(home), overrides=overrides))
        if kind == STOCK and postgres_url is not None:
            # Else it connects anew for each statement, and the server starts a process for each connection.
            log = instance.event_log_storage
            log.optimize_for_webserver(statement_timeout=60_000, pool_recycle=3600, max_overflow=-1)
        yield instance


def _storage(home: Path, kind: str, postgres_url: str | None) -> dict[str, Any]:
    if postgres_url is not None:
        module, name = (
            ("dagster_postgres.event_log", "PostgresEventLogStorage")
            if kind == STOCK
            else ("mm_assets.event_log.postgres", "BatchedPostgresEventLogStorage")
        )
        return {"module": module, "class": name, "config": {"postgres_url": postgres_url}}
    if kind == OURS:
        return {"module": "mm_assets.event_log.sqlite", "class": "BatchedSqliteEventLogStorage"}
    folder = str(home / "history" / "runs")
    return {
        "module": "dagster._core.storage.event_log",
        "class": "SqliteEventLogStorage",
        "config": {"base_dir": folder},
    }
