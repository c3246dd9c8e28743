"""Settings of all tests, and the option ``--fast``."""

import functools
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before numpy is imported, here and in hundreds of child processes: its threads spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

from mm_assets.headless import instance
from mm_assets_tests.postgres_server import PostgresServer, postgres_server
from mm_assets_tests.temporary_root import use_memory
from mm_assets_tests.tiers import ROOT, is_fast
from mm_assets_tests.warm_workers import end_warm_workers

LIVE = ROOT / "live"
LONGEST = LIVE / "test_operators_day.py"

# Without deadlines: how long an example takes is a matter of the machine, not of the code under test. The
# same examples each time: what fails, fails for all. MM_TESTS_EXAMPLES asks for more, others each time.
EXAMPLES = os.environ.get("MM_TESTS_EXAMPLES")
settings.register_profile(
    "tests", deadline=None, max_examples=int(EXAMPLES or 100), derandomize=EXAMPLES is None, database=None
)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def pytest_configure() -> None:
    use_memory()
    # Commands that run in this process leave its signals as they are: its children would inherit them.
    instance.watch_for_interrupts = lambda: None


def pytest_collection_finish() -> None:
    """Have no collection of garbage look at all modules and tests again, and others come seldom: with the
    usual ones a run of the graph takes a tenth more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    if (demo := sys.modules.get("tools.demo")) is not None:
        demo._sample = functools.cache(demo._sample)  # to encode its pictures takes seconds


def pytest_sessionfinish() -> None:
    end_warm_workers()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out what mm_assets_tests/tiers.py lists")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files of other tiers unread: to import the graph takes seconds."""
    return True if config.getoption("--fast") and not is_fast(collection_path) else None


@pytest.hookimpl(trylast=True)  # those of other markers are gone then
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files with real daemons over those with runs and commands, the longest first: they mostly
    wait, while other processes work on the rest. Those of the fast tier come last, a few seconds each: no
    core is left idle at the end, and none waits for a file that takes minutes.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    live = sorted((path for path in files if path.is_relative_to(LIVE)), key=lambda path: path != LONGEST)
    order = sorted((path for path in files if path not in live), key=is_fast)
    distance = sum(not is_fast(path) for path in order) // len(live) if live else 0
    for number, path in enumerate(live):
        order.insert(number * (distance + 1), path)
    items[:] = [item for path in order for item in files[path]]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Three processes more than cores where daemons are waited for: so many wait at most times."""
    return None if config.getoption("--fast") else (os.cpu_count() or 1) + 3
