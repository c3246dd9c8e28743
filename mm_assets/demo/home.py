"""Where the Dagster instance of a storage root lives: one for each, so that the shards of one never show up
in another.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from pathlib import Path

from mm_assets.terminal import run_command

CONFIGURATION = Path("dagster.yaml")
BOUNDS = {"MM_MIN_ASPECT_RATIO": "1.0", "MM_MAX_ASPECT_RATIO": "2.0"}


def prepare_home() -> Path:
    """The ``DAGSTER_HOME`` in force, else ``.dagster/<name>`` for ``MM_STORAGE``; made, with the project's
    ``dagster.yaml`` in it.
    """
    storage = os.environ.get("MM_STORAGE", "").rstrip("/")
    name = f"{Path(storage).name}-{hashlib.sha256(storage.encode()).hexdigest()[:8]}" if storage else "demo"
    home = Path(os.environ.get("DAGSTER_HOME") or Path(".dagster", name)).resolve()
    home.mkdir(parents=True, exist_ok=True)
    target = home / CONFIGURATION.name
    if not target.exists() and CONFIGURATION.exists():
        shutil.copyfile(CONFIGURATION, target)
    return home


def demo_bounds() -> dict[str, str]:
    """The filter bounds of the example shards; none where the user names shards or a bound."""
    return {} if any(os.environ.get(name) for name in ("MM_RAW_SHARDS", *BOUNDS)) else BOUNDS


def _print_exports() -> int:
    """What `make ui` sets, as lines of a shell; settings that the code location would refuse are told here,
    in one line.
    """
    from mm_assets.formats.raw_shards import RawLocations
    from mm_assets.settings import Settings

    RawLocations(Settings.from_environment().raw_shards)
    for name, value in {"DAGSTER_HOME": str(prepare_home()), **demo_bounds()}.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(_print_exports))
