"""What live tests share: one S3 store a session, graphs that make their shards by themselves, and the workers
of commands that run in the test's process.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mm_assets_tests.kept_dagster import kept_engines
from mm_assets_tests.live.automated import Storage, in_sqlite
from mm_assets_tests.live.daemon import DagsterDev
from mm_assets_tests.live.s3_server import S3Server, s3_server
from mm_assets_tests.live.services import Services
from mm_assets_tests.postgres_server import PostgresServer
from mm_assets_tests.warm_workers import warm_workers


@pytest.fixture(scope="package", autouse=True)
def engines() -> Iterator[None]:
    """What commands in this process share."""
    with kept_engines():
        yield


@pytest.fixture(scope="module")
def shared_workers() -> Iterator[None]:
    """Workers of all commands of a file; they have the environment of the first, and know its logins."""
    with warm_workers(apart=True):
        yield


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def sqlite(tmp_path: Path) -> Storage:
    return Storage(tmp_path, in_sqlite)


@pytest.fixture
def in_postgres(tmp_path: Path, postgres: PostgresServer, s3: S3Server) -> Iterator[Storage]:
    def serve(home: Path, variables: Mapping[str, str]) -> DagsterDev:
        return Services(home, postgres, "automation", s3, variables)

    with postgres.database("automation"):
        yield Storage(tmp_path, serve)
