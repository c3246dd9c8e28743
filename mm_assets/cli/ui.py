"""The command ``mm-assets ui``: the graph in a browser, with the daemon."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from mm_assets.terminal import USAGE, fail

_HOST = "127.0.0.1"
_LAST_PORT = 65535

_SUPERSEDED = "Function `dev_command` is superseded"


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("ui", help="serve the Dagster UI, with the daemon, on this machine")
    parser.add_argument("--port", type=_port, default=3000, help="port on 127.0.0.1 (default: 3000)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> NoReturn:
    """Become ``dagster dev``; errors of settings are told before."""
    import dagster  # noqa: F401  without it nothing is begun

    from mm_assets.formats.raw_shards import RawLocations
    from mm_assets.headless.home import prepare_home
    from mm_assets.headless.instance import open_instance
    from mm_assets.settings import Settings

    settings = Settings.load()
    RawLocations(settings.raw_shards)
    if (reason := _why_not(options.port)) is not None:
        fail(f"port {options.port} of {_HOST}: {reason}; name another with --port")
        sys.exit(USAGE)
    address = settings.ui_url or f"http://{_HOST}:{options.port}"
    os.environ["MM_UI_URL"] = address  # alerts link to it
    with open_instance(prepare_home()):
        pass  # what is wrong with it is told in one line
    print(f"the UI: {address}", flush=True)
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "true")
    # A look at 100,000 partitions takes half a minute of CPU; by default the daemon waits a minute.
    os.environ.setdefault("DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS", "300")
    # Notices of Dagster that are for whoever writes such a command, and a line for each look of a sensor.
    command = [
        sys.executable,
        "-W",
        f"ignore:{_SUPERSEDED}",
        "-m",
        "dagster",
        "dev",
        "-m",
        "mm_assets.definitions",
    ]
    command += ["--log-level", "warning"]
    print(f"Dagster on http://127.0.0.1:{options.port}, in half a minute; Ctrl-C ends it", flush=True)
    # A shell that starts it in the background has it ignore them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.execv(sys.executable, [*command, "-h", _HOST, "-p", str(options.port)])


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"not a port, 1 to {_LAST_PORT}: {text!r}")
    return int(text)


def _why_not(port: int) -> str | None:
    """Return why nothing can be served at a port; None if it can."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            server.bind((_HOST, port))
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return None
