"""Commands as a user runs them: in this process, with what they print, or in one of their own, with the
user's permissions, locale and terminal.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

from mm_assets.cli import main
from mm_assets.pool import WORKER_ENVIRONMENT

REPOSITORY = Path(__file__).parents[2]
# Root reads and writes what permissions forbid, unless these powers are taken away.
_POWERS = "-dac_override,-dac_read_search"
_AS_A_USER = ["setpriv", f"--bounding-set={_POWERS}", f"--inh-caps={_POWERS}"]


def run(*arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run ``mm-assets`` in this process, with these settings alone, on files in place of its streams.

    It is a second faster than `run_process`, and shares the workers of other commands. What a worker prints
    is not seen.
    """
    given = list(map(_text, arguments))
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        _in_place_of(1, "stdout", out),
        _in_place_of(2, "stderr", err),
        patch.dict(os.environ, environment(**settings), clear=True),
        _plain_warnings(),
    ):
        try:
            code = main(given)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        return subprocess.CompletedProcess(given, code, _text_of(out), _text_of(err))


def imports_of(*arguments: object, **settings: str) -> list[str]:
    """Run ``mm-assets`` in a process of its own, and return what its processes import, each for itself.

    What a worker has from the process that it was forked from is named once.
    """
    variables = {name: text for name, text in os.environ.items() if name not in WORKER_ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "mm_assets.cli", *map(_text, arguments)],
        capture_output=True,
        text=True,
        env=variables | settings,
    )
    assert done.returncode == 0, done.stderr
    return [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("import time:")]


@contextmanager
def _in_place_of(number: int, name: str, file: IO[bytes]) -> Iterator[None]:
    """A standard stream that leads to a file, for native libraries too."""
    stream, descriptor = getattr(sys, name), os.dup(number)
    stream.flush()
    os.dup2(file.fileno(), number)
    try:
        with open(number, "w", encoding="utf-8", closefd=False) as replacement:
            setattr(sys, name, replacement)
            yield
    finally:
        setattr(sys, name, stream)
        os.dup2(descriptor, number)
        os.close(descriptor)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """The warnings that an interpreter shows, whatever pytest has set."""
    with warnings.catch_warnings(), patch.object(logging, "lastResort", logging.lastResort):
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        yield


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def run_process(
    *arguments: object, module: str = "mm_assets.cli", as_user: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; further arguments are those of `subprocess.run`, ``env`` those
    variables that differ (None: absent).
    """
    command = [sys.executable, "-m", module, *map(_text, arguments)]
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "errors": "surrogateescape",
        "timeout": 120,
        **more,
    }
    options["env"] = environment(**more.get("env", {}))
    return subprocess.run(
        [*(_AS_A_USER if as_user and os.geteuid() == 0 else []), *command], check=False, **options
    )


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


_VERSION = 0x20080522  # of two triples of 32 bits: effective, permitted, inheritable
_FORBIDDEN = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def as_a_user() -> Iterator[None]:
    """Take root's power over permissions from this thread; other threads and processes keep theirs."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, held = _Header(_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(ctypes.byref(header), held):
        raise OSError(ctypes.get_errno(), "capget")
    less = (ctypes.c_uint32 * 6)(held[0] & ~_FORBIDDEN, *held[1:])
    try:
        if libc.capset(ctypes.byref(header), less):
            raise OSError(ctypes.get_errno(), "capset")
        yield
    finally:
        libc.capset(ctypes.byref(header), held)


def environment(**changes: str | None) -> dict[str, str]:
    """This process' environment without settings and credentials, and with some changes."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("MM_", "AWS_", "DAGSTER_"))
    }
    offline = {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    }
    wanted = {**clean, **offline, "PYTHONPATH": str(REPOSITORY), **changes}
    return {name: value for name, value in wanted.items() if value is not None}


def only_line(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line on stderr of a command that failed, without ``mm-assets:`` in front."""
    assert done.returncode == code, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("mm-assets: "), done.stderr
    return line.removeprefix("mm-assets: ")


def lines(done: subprocess.CompletedProcess[str]) -> Sequence[str]:
    """What a command that failed says on stderr, sorted, without ``mm-assets:`` in front."""
    assert done.returncode == 1, done
    assert all(line.startswith("mm-assets: ") for line in done.stderr.splitlines()), done.stderr
    return sorted(line.removeprefix("mm-assets: ") for line in done.stderr.splitlines())


def interrupt(process: subprocess.Popen[str], started: Path) -> tuple[int, str]:
    """Ctrl-C for the whole group as soon as the file ``started`` is there; exit code and stderr of the
    process.
    """
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def visible(folder: Path) -> list[str]:
    """The names in a folder that do not start with a dot, sorted."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def _text(argument: object) -> str:
    return argument if isinstance(argument, str) else str(argument)


def ok(*arguments: object, **settings: str) -> str:
    return fine(run(*arguments, **settings))


def fine(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def refused(*arguments: object, code: int = 1) -> str:
    """Fails without a traceback; gives the line that says why."""
    done = run(*arguments)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line and not line.startswith(("usage:", " "))]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("mm-assets")
    return lines[0]


# What a worker does before its own code runs; it is spawned, as the program has a second thread.
STILLBORN = """
import os, sys, threading, time
if "--multiprocessing-fork" in sys.orig_argv:
    {}
elif "from multiprocessing" not in sys.orig_argv[-1]:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""
