"""The ``mm-assets`` command."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from mm_assets import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed (one clear line on stderr), 2 wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    warnings.showwarning = show_warning
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("mm-assets: interrupted; nothing half-written was published", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, TypeError) as error:
        print(f"mm-assets: {_one_line(error)}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    from mm_assets.cli import convert, explain, inspect, verify

    parser = argparse.ArgumentParser(prog="mm-assets", description="Interleaved image-text datasets: convert, inspect, verify, explain.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    convert.add_to(commands)
    inspect.add_to(commands)
    explain.add_to(commands)
    verify.add_to(commands)
    return parser


def _one_line(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename}: no such file or folder"
    return " ".join(str(error).split()) or type(error).__name__


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line."""
    print(f"mm-assets: warning: {' '.join(str(message).split())}", file=sys.stderr)
