"""The tiers of the suite: which files each has, by folder or file below `mm_assets_tests/`.

What no list has is fast: a unit test of milliseconds, run by ``make test-fast``. ``make test`` runs the slow
ones, too: whole runs, commands, real servers, seconds each. Those marked ``clients`` need the programs of our
users (``make test-clients``), wherever they are.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent

SLOW = (
    "benchmarks",
    "cli",
    "automation",
    "deploy",
    "docs",
    "event_log",
    "filters/measures/test_memory.py",
    "filters/test_recipes.py",
    "formats/conformance/test_commands.py",
    "formats/hostile/test_declared.py",
    "formats/hostile/test_pairs.py",
    "formats/hostile/test_parquet.py",
    "formats/lance/test_crash.py",
    "formats/test_memory.py",
    "graph",
    "headless",
    "live",
    "test_extras.py",
    "test_startup.py",
    "test_workers.py",
)
CLIENTS = ("clients", "test_wheel.py")


def is_fast(path: Path) -> bool:
    """Whether a test file, or a folder of them, is in no list."""
    return not any(path.is_relative_to(ROOT / name) for name in (*SLOW, *CLIENTS))
