"""`mm-assets run` as a process of its own, which a test watches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start(raw: Path | str, storage: Path | str, home: Path, **settings: str) -> subprocess.Popen[str]:
    """Begin `mm-assets run` in a folder of its own."""
    home.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MM_")}
    environment |= {"MM_RAW_SHARDS": str(raw), "MM_STORAGE": str(storage), "DAGSTER_HOME": str(home)}
    with open(home / "told", "w") as told:
        return subprocess.Popen(
            [sys.executable, "-m", "mm_assets.cli", "run"],
            cwd=home,
            env={**environment, **settings},
            stdout=told,
            stderr=subprocess.STDOUT,
            text=True,
        )


def told_by(home: Path) -> list[str]:
    """The lines that the run in this folder has printed."""
    return (home / "told").read_text().splitlines()
