"""Commands as a user runs them: in a process of their own, with the user's permissions, locale and terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
# Root reads and writes what permissions forbid, unless these powers are taken away.
_POWERS = "-dac_override,-dac_read_search"
_AS_A_USER = ["setpriv", f"--bounding-set={_POWERS}", f"--inh-caps={_POWERS}"]


def run(
    *arguments: object, module: str = "mm_assets.cli", as_user: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run ``mm-assets``; further arguments are those of `subprocess.run`, ``env`` those variables that differ
    (None: absent).
    """
    command = [sys.executable, "-m", module, *map(os.fspath, map(_text, arguments))]
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
