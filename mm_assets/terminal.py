"""What all commands do alike at a terminal: output in any encoding, one line for whatever goes wrong, an exit
code.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

from mm_assets.extras import explained
from mm_assets.formats.error_lines import error_line
from mm_assets.formats.error_places import located
from mm_assets.formats.store_errors import is_of_store
from mm_assets.interleaved.notices import show_warnings_as_lines

FAILED = 1
INTERRUPTED = 130  # as shells have it: 128 and the signal

# Of a database, for one: classes that no standard exception stands for. By package, so that none is imported.
_EXPECTED_PACKAGES = frozenset({"pyarrow", "sqlalchemy"})


def run_command(work: Callable[[], int]) -> int:
    """Carry out a command and return its exit code.

    What data, paths, settings or the system do wrong is one line on stderr and exit code 1. An error of
    another kind is a fault of the program, and is raised.
    """
    try:
        prepare_streams()
        show_warnings_as_lines()
        code = work()
        with located("standard output"):
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return interrupted()
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        _give_up_output()
        return FAILED
    except Exception as error:
        if not _is_expected(error):
            raise
        fail(error_line(error))
        _give_up_output()
        return FAILED


def interrupted() -> int:
    """Say that Ctrl-C has ended the command; its exit code."""
    fail("interrupted; nothing half-written was published")
    return INTERRUPTED


def fail(line: str) -> None:
    """Print what is wrong."""
    print(f"mm-assets: {line}", file=sys.stderr)


def prepare_streams() -> None:
    """Output never fails for a letter that the terminal does not have: it is escaped. A stream that was
    closed leads nowhere.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
            os.set_inheritable(number, True)  # else a worker's first file would be its stderr
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _give_up_output() -> None:
    """What is still to be printed on stdout goes nowhere, so that the interpreter's end does not fail at it
    again.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_expected(error: Exception) -> bool:
    if isinstance(error, ImportError):
        error = explained(error)
    known = isinstance(error, ValueError | OSError | TypeError | MemoryError)
    return known or is_of_store(error) or type(error).__module__.partition(".")[0] in _EXPECTED_PACKAGES
