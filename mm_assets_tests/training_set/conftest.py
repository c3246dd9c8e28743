"""Sources that the tests of a module share."""

from pathlib import Path

import pytest

from mm_assets_tests.training_set.sets import make_source


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources."""
    folder = tmp_path_factory.mktemp("sources")
    make_source(folder / "web", "web", shards=3)
    make_source(folder / "books", "books", samples=8)
    return folder
