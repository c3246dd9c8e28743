"""What tests with clients share."""

from collections.abc import Iterator

import pytest

from mm_assets_tests.warm_workers import warm_workers


@pytest.fixture(scope="package", autouse=True)
def shared_workers() -> Iterator[None]:
    with warm_workers():
        yield
