"""The project that the pages are tried in."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm_assets_tests.docs.pages import README, blocks
from mm_assets_tests.docs.project import make_project, run_block
from mm_assets_tests.docs.warm_commands import warm_commands


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warm_commands(tmp_path_factory.mktemp("programs")) as folder:
        yield folder


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the README's first block, ``make demo``, has run: one for all of pytest."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "docs"
    root.mkdir(exist_ok=True)
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "made").exists():
            _run_demo(make_project(root / "project"))
            (root / "made").touch()
    return root / "project"


def _run_demo(project: Path) -> None:
    (first, *_) = [block for block in blocks(README) if block.language == "sh"]
    assert first.code == "make demo\n"
    printed = run_block(first, project, project / ".venv" / "bin")
    rows = [line.split() for line in printed.splitlines() if "demo/storage" in line]
    assert {row[0]: row[1] for row in rows} == dict.fromkeys(
        [
            "curated_parquet",
            "image_scores",
            "sample_scores",
            "filtered_parquet",
            "arrow_cache",
            "final_tars",
            "lance_table",
        ],
        "5",
    )
    assert "checks failed: 0" in printed
