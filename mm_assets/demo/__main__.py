"""``make demo``: example shards through the whole graph, and a table of what came out and where."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

from mm_assets.demo.home import demo_bounds, prepare_home
from mm_assets.demo.shards import make_shards
from mm_assets.warning_lines import show_warnings_as_lines, warning_line

ROOT = Path("demo")


def main() -> int:
    """Make shards (if there are none), materialize every asset for all of them in one run, print the table.

    With ``MM_RAW_SHARDS`` and ``MM_STORAGE`` set, those shards go there instead.
    """
    show_warnings_as_lines()
    is_own_home = not os.environ.get("DAGSTER_HOME")
    os.environ["DAGSTER_HOME"] = str(prepare_home())
    if not os.environ.get("MM_RAW_SHARDS"):
        make_shards(ROOT / "raw")
        _set_bounds()
        os.environ["MM_RAW_SHARDS"] = str(ROOT / "raw")
    if not os.environ.get("MM_STORAGE"):
        os.environ["MM_STORAGE"] = str(ROOT / "storage")
    print(f"materializing all assets for the raw shards in {os.environ['MM_RAW_SHARDS']} …", flush=True)
    try:
        return _materialize(is_own_home)
    except (FileNotFoundError, ValueError) as error:
        print(f"mm_assets: {error}", file=sys.stderr)
        return 1


def _set_bounds() -> None:
    """So that the demo shows a filter at work; without any bound nothing is filtered."""
    if bounds := demo_bounds():
        os.environ.update(bounds)
        print(f"filter of the demo: {' '.join(f'{name}={value}' for name, value in bounds.items())} (without a bound nothing is filtered)")


def _materialize(is_own_home: bool) -> int:
    import dagster as dg

    warnings.simplefilter("ignore", dg.BetaWarning)
    from mm_assets.definitions import defs
    from mm_assets.demo.summary import is_proven, print_summary
    from mm_assets.partitions import SHARDS
    from mm_assets.resources.environment import resources_from_environment

    started = time.monotonic()
    raw = resources_from_environment()["raw"]
    with dg.DagsterInstance.get() as instance:
        listed = raw.listing()
        for line in listed.unmatched:
            print(warning_line(line), file=sys.stderr)
        # In an instance of the user's, which partitions there are is not for a demo to say; and a folder may be out of reach for a moment.
        if is_own_home and not listed.unmatched:
            for gone in set(instance.get_dynamic_partitions(str(SHARDS.name))) - set(listed):
                instance.delete_dynamic_partition(str(SHARDS.name), gone)
        instance.add_dynamic_partitions(str(SHARDS.name), list(listed))
        keys = instance.get_dynamic_partitions(str(SHARDS.name))
        tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        result = defs.resolve_job_def("all_assets").execute_in_process(
            instance=instance, tags=tags, raise_on_error=False, run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        )
        print_summary(instance, result, raw.locations)
        print(f"whole run: {time.monotonic() - started:.1f} s")
    return 0 if result.success and is_proven(result) else 1


if __name__ == "__main__":
    sys.exit(main())
