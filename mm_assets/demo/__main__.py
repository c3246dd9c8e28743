"""``make demo``: run example shards through the whole graph and print a table of the outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mm_assets.headless.interrupts import watch_for_interrupts
from mm_assets.terminal import run_command

RAW = Path("demo", "raw")


def main() -> int:
    """Make example shards if needed, materialize every asset for all shards, print the table.

    With ``MM_RAW_SHARDS`` set, those shards are used instead.
    """
    return run_command(_demo)


def _demo() -> int:
    watch_for_interrupts()
    import dagster  # noqa: F401  without it nothing is begun

    from mm_assets.demo.shards import make_shards
    from mm_assets.demo.thresholds import demo_thresholds
    from mm_assets.settings_file import given_settings

    if not given_settings().get("MM_RAW_SHARDS"):
        make_shards(RAW)
        if thresholds := demo_thresholds():
            os.environ.update(thresholds)
            values = " ".join(f"{name}={value}" for name, value in thresholds.items())
            print(f"filter of the demo: {values} (without a bound nothing is filtered)")
        os.environ["MM_RAW_SHARDS"] = str(RAW)
    from mm_assets.headless.request import MakeRequest
    from mm_assets.headless.run import run_graph

    return run_graph(MakeRequest())


if __name__ == "__main__":
    sys.exit(main())
