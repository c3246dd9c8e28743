"""A task measured in a process of its own: CPU seconds, wall seconds, peak memory.

Standard library only: it runs in the peer's environment, too.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

Work = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """What a task cost: ``cpu`` user and system seconds of the process and of children it waited for,
    ``wall`` seconds, ``peak`` MiB of resident memory of the process above what it had after its preparation.
    ``result`` is what the task returned.
    """

    cpu: float
    wall: float
    peak: float
    result: dict[str, Any]


class TaskFailed(RuntimeError):
    """The task's process ended with an error; the message is the end of what it said."""


def measure(
    task: str, *, python: Path | None = None, environment: Mapping[str, str] | None = None, **arguments: Any
) -> Measurement:
    """Run ``task`` (``module:function``) in a fresh interpreter and measure it.

    The function takes ``arguments`` (JSON values), imports and prepares what it needs and returns the work,
    which alone is measured.
    """
    return _measured_apart([task, json.dumps(arguments)], task, python, environment)


def measure_command(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Measurement:
    """Run a command and measure it whole: interpreter, imports, and every process that it starts.

    Processes that outlive it, such as Ray's, become children of the one that measures, which waits for them;
    ``wall`` is that of the command alone. ``peak`` is that of its largest process. ``result`` has the bytes
    that were ``read`` and ``written`` by calls to the system, from and to anything: not by mapped memory.
    """
    return _measured_apart(["--command", *command], f"{' '.join(command[:6])} …", None, environment)


def _measured_apart(
    arguments: Sequence[str], name: str, python: Path | None, environment: Mapping[str, str] | None
) -> Measurement:
    """Run this module in a process of its own, and return what it prints."""
    done = subprocess.run(
        [str(python or sys.executable), "-m", __name__, *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TaskFailed(f"{name}: exit {done.returncode}: {done.stderr[-4000:]}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))  # a library may have printed before


def _measured_command(command: Sequence[str]) -> Measurement:
    set_child_subreaper = 36
    ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0)
    is_over = threading.Event()
    seen: dict[int, float] = {}
    sampler = threading.Thread(target=_sample_descendants, args=(seen, is_over))
    sampler.start()
    before, started = _bytes_moved(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    code = process.wait()
    wall = time.perf_counter() - started
    with suppress(ChildProcessError):
        while True:
            os.wait()
    is_over.set()
    sampler.join()
    if code:
        raise TaskFailed(f"exit {code}")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = max(usage.ru_utime + usage.ru_stime, sum(seen.values()))
    after = _bytes_moved()
    moved = {name: after[name] - before[name] for name in after}
    return Measurement(cpu, wall, usage.ru_maxrss / 1024, moved)


def _bytes_moved() -> dict[str, int]:
    """Bytes that this process, and children it waited for, have read and written so far."""
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {"read": int(found["rchar"]), "written": int(found["wchar"])}


def _sample_descendants(seen: dict[int, float], is_over: threading.Event) -> None:
    """Note the CPU seconds of each process below this one until the end.

    A parent that ignores its children, as Ray's do, has them missing in its own account.
    """
    tick = os.sysconf("SC_CLK_TCK")
    while not is_over.wait(0.05):
        parents, used = {}, {}
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdecimal():
                    with open(f"/proc/{entry}/stat") as file:
                        fields = file.read().rpartition(")")[2].split()
                    parents[int(entry)] = int(fields[1])
                    used[int(entry)] = (int(fields[11]) + int(fields[12])) / tick
        for pid in parents:
            above = pid
            while above in parents and above != os.getpid():
                above = parents[above]
            if above == os.getpid() != pid:
                seen[pid] = used[pid]


def cpu_seconds() -> float:
    """User and system seconds of this process, its threads, and its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _memory(name: str) -> float:
    """A figure of this process in MiB: ``VmRSS`` now, ``VmHWM`` at its peak."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(f"{name}:"))


def _forget_peak() -> None:
    """Set the peak back to what is resident now: imports may have needed more for a moment."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _measured(work: Work) -> Measurement:
    gc.collect()
    _forget_peak()
    resident, cpu, wall = _memory("VmRSS"), cpu_seconds(), time.perf_counter()
    result = work()
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return Measurement(cpu, wall, _memory("VmHWM") - resident, result)


def main() -> None:
    """The measured process: prints its `Measurement` as the last line."""
    if sys.argv[1] == "--command":
        print(json.dumps(_measured_command(sys.argv[2:]).__dict__), flush=True)
        return
    module, _, name = sys.argv[1].partition(":")
    prepare: Callable[..., Work] = getattr(importlib.import_module(module), name)
    print(json.dumps(_measured(prepare(**json.loads(sys.argv[2]))).__dict__), flush=True)


if __name__ == "__main__":
    main()
