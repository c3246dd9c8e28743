"""Settings of all tests, and the option ``--fast``."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before numpy is imported, here and in hundreds of child processes: its threads spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

from mm_assets_tests.postgres_server import PostgresServer, postgres_server
from mm_assets_tests.temporary_root import use_memory
from mm_assets_tests.tiers import ROOT, is_fast

LIVE = ROOT / "live"

# Without deadlines: how long an example takes is a matter of the machine, not of the code under test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def pytest_configure() -> None:
    use_memory()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out what mm_assets_tests/tiers.py lists")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files of other tiers unread: to import the graph takes seconds."""
    return True if config.getoption("--fast") and not is_fast(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those with real daemons first: they mostly wait, while other processes work on the rest."""
    items.sort(key=lambda item: not item.path.is_relative_to(LIVE))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One process more than cores where daemons are waited for."""
    return None if config.getoption("--fast") else (os.cpu_count() or 1) + 1
