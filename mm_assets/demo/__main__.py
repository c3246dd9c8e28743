"""``make demo``: example shards through the whole graph, and a table of what came out and where."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from pathlib import Path

from mm_assets.demo.shards import make_shards

ROOT = Path("demo")


def main() -> int:
    """Make shards (if there are none), materialize every asset for all of them in one run, print the table."""
    shards = make_shards(ROOT / "raw")
    home = ROOT / "dagster_home"
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile("dagster.yaml", home / "dagster.yaml")
    os.environ["DAGSTER_HOME"] = str(home.resolve())
    os.environ.setdefault("MM_RAW_SHARDS", str(ROOT / "raw"))
    os.environ.setdefault("MM_STORAGE", str(ROOT / "storage"))
    print(f"{len(shards)} raw shards in {ROOT / 'raw'}; materializing all assets …", flush=True)
    return _materialize()


def _materialize() -> int:
    import dagster as dg

    warnings.simplefilter("ignore", dg.BetaWarning)
    from mm_assets.definitions import defs, raw
    from mm_assets.demo.summary import print_summary
    from mm_assets.partitions import SHARDS

    started = time.monotonic()
    with dg.DagsterInstance.get() as instance:
        keys = list(raw.listing())
        instance.add_dynamic_partitions(str(SHARDS.name), keys)
        keys = instance.get_dynamic_partitions(str(SHARDS.name))
        tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        result = defs.get_job_def("all_assets").execute_in_process(instance=instance, tags=tags, raise_on_error=False)
        print_summary(instance, result, raw.locations)
        print(f"whole run: {time.monotonic() - started:.1f} s")
    return 0 if result.success else 1


if __name__ == "__main__":
    sys.exit(main())
