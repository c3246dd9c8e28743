"""Where the Dagster instance of a storage root lives: one for each, so that the shards of one never show up in another."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

CONFIGURATION = Path("dagster.yaml")


def prepare_home() -> Path:
    """The ``DAGSTER_HOME`` in force, else ``.dagster/<name>`` for ``MM_STORAGE``; made, with the project's ``dagster.yaml`` in it."""
    storage = os.environ.get("MM_STORAGE", "").rstrip("/")
    name = f"{Path(storage).name}-{hashlib.sha256(storage.encode()).hexdigest()[:8]}" if storage else "demo"
    home = Path(os.environ.get("DAGSTER_HOME") or Path(".dagster", name)).resolve()
    home.mkdir(parents=True, exist_ok=True)
    target = home / CONFIGURATION.name
    if not target.exists() and CONFIGURATION.exists():
        shutil.copyfile(CONFIGURATION, target)
    return home


if __name__ == "__main__":
    print(prepare_home())
