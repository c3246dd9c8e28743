"""What a measurement ran on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT
from mm_assets.pool import available_cores

_PACKAGES = ("mm-assets", "pyarrow", "pylance", "dagster", "pillow", "numpy")


def machine_facts() -> dict[str, Any]:
    """Processor, cores, memory, load, kernel and versions; nothing that names the machine."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _first("/proc/cpuinfo", "model name"),
        "cores": available_cores(),
        "memory": f"{int(_first('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB",
        "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "commit": _commit(),
        **{name: version(name) for name in _PACKAGES},
    }


def _commit() -> str:
    """The commit, with a mark if its files were changed, other than by results of earlier benchmarks."""
    if shutil.which("git") is None:
        return "unknown"
    head = _git("describe", "--always")
    changes = _git("diff", "HEAD", "--stat", "--", ".", ":!benchmarks/results")
    return f"{head or 'unknown'}{'-dirty' if changes else ''}"


def _git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _first(path: str, name: str) -> str:
    """The first value that a file of ``name: value`` lines has for a name."""
    lines = Path(path).read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "0"
    )
