"""``make demo``: run example shards through the whole graph and print a table of the outputs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from mm_assets.demo.home import demo_thresholds, prepare_home
from mm_assets.formats.error_places import located
from mm_assets.interleaved.notices import warning_line
from mm_assets.terminal import interrupted, run_command

ROOT = Path("demo")


def main() -> int:
    """Make example shards if needed, materialize every asset for all shards in one run, print the table.

    With ``MM_RAW_SHARDS`` and ``MM_STORAGE`` set, those shards and that storage are used instead.
    """
    return run_command(_demo)


def _demo() -> int:
    _watch_for_interrupts()  # first: some imports would swallow the interrupt
    import dagster  # noqa: F401  without it nothing is begun

    from mm_assets.demo.shards import make_shards
    from mm_assets.formats.output_folder import refuse_unwritable

    is_own_home = not os.environ.get("DAGSTER_HOME")
    os.environ["DAGSTER_HOME"] = str(prepare_home())
    if not os.environ.get("MM_RAW_SHARDS"):
        make_shards(ROOT / "raw")
        _set_thresholds()
        os.environ["MM_RAW_SHARDS"] = str(ROOT / "raw")
    os.environ["MM_STORAGE"] = os.path.expanduser(os.environ.get("MM_STORAGE") or ROOT / "storage")
    print(f"materializing all assets for the raw shards in {os.environ['MM_RAW_SHARDS']} ...", flush=True)
    refuse_unwritable(os.environ["MM_STORAGE"])
    return _materialize(is_own_home)


def _watch_for_interrupts() -> None:
    """End the demo with one line on Ctrl-C; while Dagster runs, it ends the run first.

    Dagster's helper processes would each print a traceback. They inherit that the signal is blocked and end
    with this process, so a thread receives the signal instead.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(interrupted()))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _set_thresholds() -> None:
    """Set filter thresholds so that the demo shows a filter at work; without any, nothing is filtered."""
    if thresholds := demo_thresholds():
        os.environ.update(thresholds)
        print(
            f"filter of the demo: {' '.join(f'{name}={value}' for name, value in thresholds.items())} "
            "(without a bound nothing is filtered)"
        )


def _materialize(is_own_home: bool) -> int:
    import dagster as dg

    warnings.simplefilter("ignore", dg.BetaWarning)
    from mm_assets.definitions import defs
    from mm_assets.demo.summary import is_proven, loss_share, print_summary
    from mm_assets.partitions import SHARDS
    from mm_assets.resources.environment import resources_from_environment
    from mm_assets.settings import Settings

    started = time.monotonic()
    raw = resources_from_environment()["raw"]
    listed = raw.listing()
    for line in listed.unmatched:
        print(warning_line(line), file=sys.stderr)
    with located(f"DAGSTER_HOME {os.environ['DAGSTER_HOME']}"), dg.DagsterInstance.get() as instance:
        # Partitions are only deleted from the demo's own instance, and only if all folders could be listed:
        # one may be unreachable for a moment.
        if is_own_home and not listed.unmatched:
            for removed in set(instance.get_dynamic_partitions(str(SHARDS.name))) - set(listed):
                instance.delete_dynamic_partition(str(SHARDS.name), removed)
        instance.add_dynamic_partitions(str(SHARDS.name), list(listed))
        keys = instance.get_dynamic_partitions(str(SHARDS.name))
        tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        try:
            result = defs.resolve_job_def("all_assets").execute_in_process(
                instance=instance,
                tags=tags,
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
        except dg.DagsterExecutionInterruptedError:
            return interrupted()
        if _was_interrupted(result):
            return interrupted()
        print_summary(instance, result, raw.locations, keys)
        print(f"whole run: {time.monotonic() - started:.1f} s")
    is_within_loss = loss_share(result) <= Settings.from_environment().max_loss
    return 0 if result.success and is_proven(result, keys) and is_within_loss else 1


def _was_interrupted(result: Any) -> bool:
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return any(error is not None and error.cls_name == "DagsterExecutionInterruptedError" for error in errors)


if __name__ == "__main__":
    sys.exit(main())
