"""Folder of the Dagster instance of a storage root: one each, so that their shards are kept apart."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from mm_assets.settings import Settings
from mm_assets.settings_file import given_settings

CONFIGURATION = Path(__file__).with_name("dagster.yaml")


def home_in_force() -> Path:
    """Return ``DAGSTER_HOME``, else ``.dagster/<name>`` for ``MM_STORAGE``; it need not exist."""
    storage = given_settings().get("MM_STORAGE", "").rstrip("/")
    name = f"{Path(storage).name}-{hashlib.sha256(storage.encode()).hexdigest()[:8]}"
    if storage in ("", Settings.storage):
        name = "demo"
    return Path(os.environ.get("DAGSTER_HOME") or Path(".dagster", name)).expanduser().resolve()


def prepare_home() -> Path:
    """Set ``DAGSTER_HOME`` to the `home_in_force`, and return it.

    The folder is created, with a ``dagster.yaml`` in it: that of the working directory, else the default one.
    """
    home = home_in_force()
    home.mkdir(parents=True, exist_ok=True)
    target = home / CONFIGURATION.name
    if not target.exists():
        own = Path(CONFIGURATION.name)
        # Another command that starts now, or after this one was killed, must not find half of it.
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(own if own.exists() else CONFIGURATION, aside)
        os.replace(aside, target)
    os.environ["DAGSTER_HOME"] = str(home)
    return home
