"""Folder of the Dagster instance of a storage root: one each, so that their shards are kept apart."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from pathlib import Path

from mm_assets.terminal import run_command

CONFIGURATION = Path("dagster.yaml")
THRESHOLDS = {"MM_MIN_ASPECT_RATIO": "1.0", "MM_MAX_ASPECT_RATIO": "2.0"}


def home_in_force() -> Path:
    """Return ``DAGSTER_HOME``, else ``.dagster/<name>`` for ``MM_STORAGE``; it need not exist."""
    storage = os.environ.get("MM_STORAGE", "").rstrip("/")
    name = f"{Path(storage).name}-{hashlib.sha256(storage.encode()).hexdigest()[:8]}" if storage else "demo"
    return Path(os.environ.get("DAGSTER_HOME") or Path(".dagster", name)).resolve()


def prepare_home() -> Path:
    """Return the `home_in_force`. The folder is created, with the project's ``dagster.yaml`` in it."""
    home = home_in_force()
    home.mkdir(parents=True, exist_ok=True)
    target = home / CONFIGURATION.name
    if not target.exists() and CONFIGURATION.exists():
        shutil.copyfile(CONFIGURATION, target)
    return home


def demo_thresholds() -> dict[str, str]:
    """Return the filter thresholds of the example shards.

    There are none if the user names shards or a setting of a filter.
    """
    from mm_assets.filters.registry import FILTERS, settings_of
    from mm_assets.settings import variable

    named = ("MM_RAW_SHARDS", *(variable(known.name) for known in settings_of(FILTERS)))
    return {} if any(os.environ.get(name) for name in named) else THRESHOLDS


def _print_exports() -> int:
    """Print the variables that `make ui` sets, as shell commands.

    Settings that the code location would refuse are reported here, in one line.
    """
    from mm_assets.formats.raw_shards import RawLocations
    from mm_assets.settings import Settings

    RawLocations(Settings.from_environment().raw_shards)
    for name, value in {"DAGSTER_HOME": str(prepare_home()), **demo_thresholds()}.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(_print_exports))
