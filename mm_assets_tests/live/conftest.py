"""What live tests share: one S3 store a session, and graphs that make their shards by themselves."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mm_assets_tests.live.automated import Storage, in_sqlite
from mm_assets_tests.live.daemon import DagsterDev
from mm_assets_tests.live.s3_server import S3Server, s3_server
from mm_assets_tests.live.services import Services
from mm_assets_tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def sqlite(tmp_path: Path) -> Storage:
    return Storage(tmp_path, in_sqlite, 12)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.clients)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "sqlite":
        yield Storage(tmp_path, in_sqlite, 12)
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    s3: S3Server = request.getfixturevalue("s3")

    def in_postgres(home: Path, variables: Mapping[str, str]) -> DagsterDev:
        return Services(home, postgres, "automation", s3, variables)

    with postgres.database("automation"):
        yield Storage(tmp_path, in_postgres, 40)
