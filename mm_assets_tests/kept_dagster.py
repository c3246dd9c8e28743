"""What Dagster reads, infers or compiles anew each time, kept: what lies on the disk is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster._config.pythonic_config import config
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from sqlalchemy import Engine, create_engine

from mm_assets_tests.quick_instance import sharing


@pytest.fixture(scope="package", autouse=True)
def kept_dagster() -> Iterator[None]:
    """For a `conftest.py` to import: the tests below it read Dagster's migrations once, 170 files that it
    reads for each database that it opens. Dagster lists all fields of a class anew for each one that it
    looks up.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", _by_location(ScriptDirectory.from_config))
        patch.setattr(config, "model_fields", cache(config.model_fields))
        yield


def _by_location(read: Callable[[Config], ScriptDirectory]) -> Callable[[Config], ScriptDirectory]:
    kept: dict[str | None, ScriptDirectory] = {}

    def known(config: Config) -> ScriptDirectory:
        location = config.get_main_option("script_location")
        return kept.get(location) or kept.setdefault(location, read(config))

    return known


@contextmanager
def kept_engines() -> Iterator[None]:
    """Use one engine for each of Dagster's SQLite databases until the end of the block. It makes one for each
    statement, and an engine that is new has to compile what it has compiled before.
    """
    engines: dict[str, Engine] = {}

    def kept(url: str, **options: Any) -> Engine:
        return engines.get(url) or engines.setdefault(url, sharing(create_engine(url, **options)))

    with pytest.MonkeyPatch.context() as patch:
        for module in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):
            patch.setattr(module, "create_engine", kept)
        yield
