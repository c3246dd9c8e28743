"""The services of `deploy/postgres/compose.yaml` without Docker: its commands and files, on free ports.

``python -m mm_assets_tests.live.services SERVICES PORT``: starts the code server, the others once it is
healthy, and ends them all at SIGINT. SERVICES is JSON: a list of [command, its health check]. PORT is the
code server's: until it listens, nobody pays for a health check.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import dagster as dg

from mm_assets_tests.deploy.recipe import DAGSTER_YAML, WORKSPACE, compose, environment
from mm_assets_tests.free_port import free_port
from mm_assets_tests.live.daemon import DagsterDev
from mm_assets_tests.live.s3_server import S3Server
from mm_assets_tests.postgres_server import PostgresServer

_BIN = Path(sys.executable).parent


class Services(DagsterDev):
    """Code server, web server and daemon of the Postgres profile, over a database and a store of the test."""

    start_seconds = 240.0

    def __init__(
        self, home: Path, postgres: PostgresServer, database: str, s3: S3Server, variables: Mapping[str, str]
    ) -> None:
        self._code_port = str(free_port())
        self._settings = {
            **postgres.environment(database),
            **s3.env,
            "DAGSTER_LOGS_BUCKET": s3.bucket,
            "DAGSTER_CODE_HOST": "127.0.0.1",
            "DAGSTER_CODE_PORT": self._code_port,
        }
        variables = self._settings | dict(variables)
        super().__init__("mm_assets.definitions", home, variables, DAGSTER_YAML.read_text())
        shutil.copyfile(WORKSPACE, home / WORKSPACE.name)

    def _arguments(self) -> list[str]:
        services = json.dumps([self._here(name) for name in _ORDER])
        return ["mm_assets_tests.live.services", services, self._code_port]

    def _here(self, service: str) -> tuple[list[str], list[str]]:
        """Command and health check of a service, as they are run here."""
        recipe = compose()["services"][service]
        check = recipe["healthcheck"]["test"]
        assert check[0] == "CMD"
        return self._moved(recipe["command"]), self._moved(check[1:])

    def _moved(self, command: list[str]) -> list[str]:
        ports = {environment()["DAGSTER_CODE_PORT"]: self._code_port, "3000": str(self.port)}
        moved = [str(_BIN / command[0])]
        for argument in command[1:]:
            argument = ports.get(argument, argument).replace("0.0.0.0", "127.0.0.1")
            moved.append(argument.replace("/opt/dagster", str(self.home)).replace(":3000/", f":{self.port}/"))
        return moved

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        with (
            patch.dict(os.environ, self._settings),
            dg.DagsterInstance.from_config(str(self.home)) as instance,
        ):
            yield instance

    def health(self) -> dict[str, int]:
        """The exit code of each service's health check."""
        return {
            name: subprocess.run(self._here(name)[1], env=self.environment, check=False).returncode
            for name in _ORDER
        }


_ORDER = ("code", "webserver", "daemon")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _main() -> None:
    children: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: FrameType | None) -> None:
        for child in reversed(children):
            child.terminate()
        for child in reversed(children):
            child.wait()
        sys.exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    (code, check), *others = json.loads(sys.argv[1])
    children.append(subprocess.Popen(code))
    while children[0].poll() is None and not (_listens(int(sys.argv[2])) and not subprocess.call(check)):
        time.sleep(0.5)
    children.extend(subprocess.Popen(command) for command, _ in others)
    while all(child.poll() is None for child in children):
        time.sleep(0.5)
    end(0, None)


if __name__ == "__main__":
    _main()
