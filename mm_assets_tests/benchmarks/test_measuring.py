"""A measured task runs alone in its process, and only its work counts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring import TaskFailed, Work, measure, measure_command

_MIB = 1 << 20


def allocate(before: int, during: int) -> Work:
    """A task that touches ``before`` MiB while it is prepared and ``during`` MiB as its work."""
    bytearray(os.urandom(_MIB) * before)

    def work() -> dict[str, Any]:
        return {"length": len(os.urandom(_MIB) * during), "process": os.getpid()}

    return work


def fail() -> Work:
    raise ValueError("the reason")


def test_memory_of_the_preparation_does_not_count() -> None:
    done = measure(f"{__name__}:allocate", before=400, during=100)
    assert done.result["length"] == 100 * _MIB
    assert done.result["process"] != os.getpid()
    assert 100 <= done.peak < 200


def test_a_task_that_fails_says_why() -> None:
    with pytest.raises(TaskFailed, match="ValueError: the reason"):
        measure(f"{__name__}:fail")


BURN = "import time; end = time.process_time() + {}\nwhile time.process_time() < end: pass"
# A parent that ignores its child, and ends before it.
ORPHAN = f"""
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {BURN.format(1)!r}])
{BURN.format(0.5)}
"""


def test_a_whole_command_has_the_processes_that_outlive_it() -> None:
    done = measure_command([sys.executable, "-c", ORPHAN])
    assert 1.5 <= done.cpu < 3


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(TaskFailed, match="no such thing"):
        measure_command([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_a_whole_command_has_the_bytes_that_its_processes_move(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(64 * _MIB))
    names = f"{str(file)!r}, {str(file) + '.copy'!r}"
    copy = f"a, b = {names}; open(b, 'wb').write(open(a, 'rb').read())"
    by_child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {copy!r}], check=True)"
    done = measure_command([sys.executable, "-c", by_child])
    assert 64 * _MIB <= done.result["read"] < 72 * _MIB  # with what the interpreters read
    assert 64 * _MIB <= done.result["written"] < 65 * _MIB
