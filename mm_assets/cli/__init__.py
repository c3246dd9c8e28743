"""The ``mm-assets`` command."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib import import_module

from mm_assets import __version__
from mm_assets.cli.arguments import CommandParser
from mm_assets.terminal import run_command
from mm_assets.worker_environment import WORKER_ENVIRONMENT

# Modules of this package, in the order of the help. Those of the graph import Dagster when they run.
COMMANDS = (
    "convert",
    "inspect",
    "verify",
    "init",
    "run",
    "ui",
    "prove",
    "explain",
    "show",
    "preview",
    "tag",
    "diff",
    "retire",
    "alerts",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Returns:
        0: done. 1: failed, with one line on stderr. 2: wrong usage.
    """
    return run_command(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    options = _parser().parse_args(arguments)
    _refuse_unknown_settings()
    _use_stores()
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="mm-assets", description="Interleaved image-text datasets.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"mm_assets.cli.{name}").add_to(commands)
    return parser


def _refuse_unknown_settings() -> None:
    """Report a misspelt variable in every command, also in those that use no setting."""
    from mm_assets.settings import Settings

    Settings.load()


def _use_stores() -> None:
    from mm_assets.formats.stores import use_stores
    from mm_assets.settings_file import given_settings

    use_stores(given_settings().stores)
