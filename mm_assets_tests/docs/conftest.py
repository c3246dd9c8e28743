"""The project that the pages are tried in."""

from pathlib import Path

import pytest

from mm_assets_tests.docs.pages import README, blocks
from mm_assets_tests.docs.project import make_project, run_block


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the README's first block, ``make demo``, has run."""
    project = make_project(tmp_path_factory.mktemp("docs") / "project")
    (first, *_) = [block for block in blocks(README) if block.language == "sh"]
    assert first.code == "make demo\n"
    printed = run_block(first, project)
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
    return project
