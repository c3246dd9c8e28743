"""What tests of formats share."""

from collections.abc import Iterator

import pytest

from mm_assets_tests.warm_workers import warm_workers


@pytest.fixture(scope="module")
def shared_workers() -> Iterator[None]:
    """Let the commands of a file use the same workers."""
    with warm_workers():
        yield
