"""The ``mm-assets`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from mm_assets import __version__
from mm_assets.cli.arguments import CommandParser
from mm_assets.cli.convert import convert_arguments
from mm_assets.cli.graph import alerts_arguments, init_arguments, prove_arguments, run_arguments, ui_arguments
from mm_assets.cli.look import explain_arguments, inspect_arguments, preview_arguments, show_arguments
from mm_assets.cli.states import diff_arguments, retire_arguments, tag_arguments, verify_arguments
from mm_assets.pool.worker_process import WORKER_ENVIRONMENT
from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings
from mm_assets.terminal import run_command

# What adds each command to the parser, in the order of the help. Dagster is imported only to run one.
COMMANDS = {
    "convert": convert_arguments,
    "inspect": inspect_arguments,
    "verify": verify_arguments,
    "init": init_arguments,
    "run": run_arguments,
    "ui": ui_arguments,
    "prove": prove_arguments,
    "explain": explain_arguments,
    "show": show_arguments,
    "preview": preview_arguments,
    "tag": tag_arguments,
    "diff": diff_arguments,
    "retire": retire_arguments,
    "alerts": alerts_arguments,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Returns:
        0: done. 1: failed, with one line on stderr. 2: wrong usage.
    """
    return run_command(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(given[:1]).parse_args(given)
    Settings.load()  # reports a misspelt variable in every command, also in those that use no setting
    from mm_assets.storage.stores import use_stores

    use_stores(given_settings().stores)
    return int(options.run(options))


def _parser(called: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that is ``called``; of all, for help and for what is no command."""
    parser = CommandParser(prog="mm-assets", description="Interleaved image-text datasets.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS.keys() & set(called) or COMMANDS:
        COMMANDS[name](commands)
    return parser
