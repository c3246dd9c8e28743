"""The ``mm-assets`` command."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from mm_assets import __version__
from mm_assets.pool import WORKER_ENVIRONMENT
from mm_assets.terminal import end_process, run_command

# The module of each command, in the order of the help. It is imported once `WORKER_ENVIRONMENT` is set.
COMMANDS = {
    "convert": "convert",
    "reshard": "reshard",
    "inspect": "convert",
    "verify": "convert",
    "init": "graph",
    "examples": "graph",
    "completion": "graph",
    "run": "graph",
    "ui": "graph",
    "statistics": "look",
    "duplicates": "look",
    "prove": "graph",
    "status": "look",
    "explain": "look",
    "show": "look",
    "preview": "look",
    "report": "look",
    "publish": "states",
    "tag": "states",
    "diff": "look",
    "retire": "states",
    "erase": "states",
    "alerts": "graph",
}

# Imports make a million objects that stay: going through them again takes a sixth of a short command.
_COLLECT_SELDOM = (100_000, 50, 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Returns:
        0: done. 1: failed, with one line on stderr. 2: wrong usage.
    """
    return run_command(lambda: _run(arguments))


def enter() -> None:
    """Run the command line of this process, and end it."""
    end_process(main())


def _run(arguments: Sequence[str] | None) -> int:
    gc.set_threshold(*_COLLECT_SELDOM)
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser_of(given[:1]).parse_args(given)
    from mm_assets.settings import Settings
    from mm_assets.settings_file import given_settings
    from mm_assets.storage import use_stores

    Settings.load()  # reports a misspelt variable in every command, also in those that use no setting
    use_stores(given_settings().stores)
    return int(options.run(options))


def parser_of(called: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that is ``called``; of all, for help and for what is no command."""
    from mm_assets.cli.arguments import CommandParser

    parser = CommandParser(prog="mm-assets", description="Interleaved image-text datasets.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS.keys() & set(called) or COMMANDS:
        _adder(name)(commands)
    return parser


def _adder(name: str) -> Callable[[Any], None]:
    """Return what adds a command to the parser."""
    add: Callable[[Any], None] = getattr(
        import_module(f"mm_assets.cli.{COMMANDS[name]}"), f"{name}_arguments"
    )
    return add
