"""The ``mm-assets`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from mm_assets import __version__
from mm_assets.warning_lines import show_warnings_as_lines

# Packages of file systems whose errors (no credentials, no such host) are of no class that Python has.
_OBJECT_STORES = frozenset({"aiobotocore", "aiohttp", "botocore", "gcsfs", "google", "s3fs"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed (one clear line on stderr), 2 wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    show_warnings_as_lines()
    try:
        _refuse_unknown_settings()
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
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _OBJECT_STORES:
            raise
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


def _refuse_unknown_settings() -> None:
    """A misspelt variable is told by every command, also by those that ask for none."""
    from mm_assets.settings import Settings

    Settings.from_environment()


def _one_line(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename}: no such file or folder"
    return " ".join(str(error).split()) or type(error).__name__
