"""What tests of commands share: worker processes, and data to be shown."""

from pathlib import Path

import pytest

from mm_assets_tests.cli.formats_to_show import fill_formats
from mm_assets_tests.cli.hostile_storage import fill_hostile
from mm_assets_tests.warm_workers import shared_workers

__all__ = ["shared_workers"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same samples in each format."""
    return fill_formats(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with a sample of texts and names that try to break a page or a terminal."""
    return fill_hostile(tmp_path_factory.mktemp("hostile"))
