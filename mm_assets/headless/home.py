"""Folder of the Dagster instance of a storage root: one each, so that their shards are kept apart."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings

CONFIGURATION = Path(__file__).with_name("dagster.yaml")


def prepare_home() -> Path:
    """Set ``DAGSTER_HOME``, unless it is set, to ``.dagster/<name>`` for ``MM_STORAGE``, and return it.

    The folder is created, with a ``dagster.yaml`` in it: that of the working directory, else the default one.
    """
    storage = given_settings().get("MM_STORAGE", "").rstrip("/")
    name = f"{Path(storage).name}-{hashlib.sha256(storage.encode()).hexdigest()[:8]}"
    if storage in ("", Settings.storage):
        name = "demo"
    home = Path(os.environ.get("DAGSTER_HOME") or Path(".dagster", name)).expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    target = home / CONFIGURATION.name
    if not target.exists():
        own = Path(CONFIGURATION.name)
        shutil.copyfile(own if own.exists() else CONFIGURATION, target)
    os.environ["DAGSTER_HOME"] = str(home)
    return home
