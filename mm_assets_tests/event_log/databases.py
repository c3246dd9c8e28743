"""Event logs of both kinds of database, as stock class and as ours, over one Dagster home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

STOCK, OURS = "stock", "ours"


@contextmanager
def open_instance(home: Path, kind: str, postgres_url: str | None = None) -> Iterator[dg.DagsterInstance]:
    """Open the instance of a home with the stock class or with ours, for the event log alone."""
    home.mkdir(parents=True, exist_ok=True)
    overrides = {"event_log_storage": _storage(home, kind, postgres_url)}
    with dg.instance_for_test(temp_dir=str(home), overrides=overrides) as instance:
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
