"""A table of what a run made: one line an asset."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from mm_assets.io_managers.events import URI


@dataclass
class _Line:
    partitions: int = 0
    unchanged: int = 0
    samples: int = 0
    images: int = 0
    bytes: int = 0
    places: set[str] = field(default_factory=set)


def print_summary(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult, raw: str) -> None:
    """Print partitions, samples, images, bytes, seconds and folder of every asset the run materialized, and its failed checks."""
    lines: dict[str, _Line] = defaultdict(_Line)
    for event in result.get_asset_materialization_events():
        materialization = event.step_materialization_data.materialization
        line = lines[materialization.asset_key.to_user_string()]
        values = {name: value.value for name, value in materialization.metadata.items()}
        line.partitions += 1
        line.unchanged += bool(values.get("unchanged"))
        line.samples += _number(values, "samples")
        line.images += _number(values, "images")
        line.bytes += _number(values, "bytes")
        if uri := values.get(URI):
            line.places.add(str(uri) if str(uri).endswith(".lance") else str(uri).rpartition("/")[0])
    seconds = _seconds(instance, result.run_id)
    header = ("asset", "partitions", "unchanged", "samples", "images", "MB", "seconds", "where")
    rows = [
        (name, str(line.partitions), str(line.unchanged), str(line.samples or ""), str(line.images), f"{line.bytes / 1e6:.1f}",
         f"{seconds.get(name, 0):.1f}", ", ".join(sorted(line.places)))
        for name, line in lines.items()
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.ljust(width) if i in (0, 7) else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())
    failed = [e for e in result.get_asset_check_evaluations() if not e.passed]
    for evaluation in failed:
        of = evaluation.partition or ", ".join(str(s) for s in getattr(evaluation.metadata.get("shards"), "value", None) or [])
        print(f"check failed: {evaluation.asset_key.to_user_string()}.{evaluation.check_name}: {of}")
    for error in _shard_errors(instance, result.run_id):
        print(error)
    print(f"raw shards: {raw}; checks failed: {len(failed)}")


def _shard_errors(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """The first line of every error that names a shard, without those that only follow from another asset's."""
    entries = [record.event_log_entry for record in instance.get_records_for_run(run_id).records]
    messages = [e.user_message.splitlines()[0] for e in entries if int(e.level) >= logging.ERROR and e.user_message.startswith("shard ")]
    return [message for message in messages if "failed in this run" not in message]


def _number(values: dict[str, Any], name: str) -> int:
    return int(values.get(name) or 0)


def _seconds(instance: dg.DagsterInstance, run_id: str) -> dict[str, float]:
    return {
        stats.step_key: stats.end_time - stats.start_time
        for stats in instance.get_run_step_stats(run_id)
        if stats.end_time and stats.start_time
    }
