"""The command ``mm-assets ui``: the graph in a browser, with the daemon."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

_SUPERSEDED = "Function `dev_command` is superseded"


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("ui", help="serve the Dagster UI, with the daemon, on this machine")
    parser.add_argument("--port", type=int, default=3000, help="port on 127.0.0.1 (default: 3000)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Become ``dagster dev``; errors of settings are told before."""
    import dagster  # noqa: F401  without it nothing is begun

    from mm_assets.formats.raw_shards import RawLocations
    from mm_assets.headless.home import prepare_home
    from mm_assets.settings import Settings

    settings = Settings.load()
    RawLocations(settings.raw_shards)
    if settings.ui_url is None:  # alerts link to it
        os.environ["MM_UI_URL"] = f"http://127.0.0.1:{options.port}"
    prepare_home()
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "true")
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
    os.execv(sys.executable, [*command, "-h", "127.0.0.1", "-p", str(options.port)])
