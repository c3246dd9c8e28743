"""A process whose forks call a function: a test that needs a process of its own pays for no imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOOP = """
import json, os, sys
{code}
for line in sys.stdin:
    process = os.fork()
    if process == 0:
        print(json.dumps(of(*json.loads(line))), flush=True)
        os._exit(0)
    if os.waitpid(process, 0)[1]:
        print("null", flush=True)
"""


class Forks:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, *arguments: str) -> Any:
        """Return what the function returns in a new process; None if that died."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def forks(code: str) -> Iterator[Forks]:
    """Run code that imports what it needs, starts no threads, and defines a function ``of``."""
    command = [sys.executable, "-c", _LOOP.format(code=code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Forks(process)
