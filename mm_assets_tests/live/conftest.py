"""What live tests share: one S3 store a session."""

from collections.abc import Iterator

import pytest

from mm_assets_tests.live.s3_server import S3Server, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server
