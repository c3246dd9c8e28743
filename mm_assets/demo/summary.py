"""A table of what a run made: one line an asset."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from mm_assets.demo.problems import problem_lines
from mm_assets.io_managers.base import LANDED
from mm_assets.io_managers.events import URI
from mm_assets.io_managers.prover import ZERO_LOSS


@dataclass
class _Line:
    partitions: int = 0
    unchanged: int = 0
    samples: int = 0
    images: int = 0
    filtered: int = 0
    quarantined: int = 0
    bytes: int = 0
    places: set[str] = field(default_factory=set)


def print_summary(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult, raw: str) -> None:
    """Print what went wrong, then partitions, samples, images, bytes, seconds and folder of every asset the run materialized."""
    for problem in problem_lines(instance, result):
        print(problem)
    lines: dict[str, _Line] = defaultdict(_Line)
    for event in result.get_asset_materialization_events():
        materialization = event.step_materialization_data.materialization
        line = lines[materialization.asset_key.to_user_string()]
        values = {name: value.value for name, value in materialization.metadata.items()}
        line.partitions += 1
        line.unchanged += bool(values.get("unchanged"))
        line.samples += _number(values, "samples")
        line.images += _number(values, "images")
        line.filtered += _total(values, "filtered")
        line.quarantined += _total(values, "quarantined")
        line.bytes += _number(values, "bytes")
        if uri := values.get(URI):
            line.places.add(str(uri) if str(uri).endswith(".lance") else str(uri).rpartition("/")[0])
    seconds = _seconds(instance, result.run_id)
    header = ("asset", "partitions", "unchanged", "samples", "images", "filtered", "quarantined", "MB", "seconds", "where")
    rows = [
        (name, str(line.partitions), str(line.unchanged), str(line.samples or ""), str(line.images), str(line.filtered or ""),
         str(line.quarantined or ""), f"{line.bytes / 1e6:.1f}",
         f"{seconds.get(name, 0):.1f}", ", ".join(sorted(line.places)))
        for name, line in lines.items()
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows] if rows else []:
        name, *numbers, place = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([name.strip().ljust(len(name)), *numbers, place.strip()]).rstrip())
    examined = [e for e in result.get_asset_check_evaluations() if e.check_name == ZERO_LOSS and e.partition]
    broken = sum(not e.passed for e in examined)
    shards, outputs = len({e.partition for e in examined}), len({e.asset_key for e in examined})
    if broken:
        print(f"NOT PROVEN: {broken} of {len(examined)} shards of outputs are not as they were written; the next run makes them again")
    elif examined:
        print(f"proven: every item of {shards} shards is in {outputs} outputs as it was written (proof/proof.json)")
    failed = sum(not e.passed and e.check_name != LANDED for e in result.get_asset_check_evaluations())
    print(f"raw shards: {raw}; shards failed: {len(_failed_shards(result))}; checks failed: {failed}")


def _failed_shards(result: dg.ExecuteInProcessResult) -> set[str]:
    landed = [e for e in result.get_asset_check_evaluations() if e.check_name == LANDED]
    return {str(key) for e in landed for key in getattr(e.metadata.get("shards"), "value", None) or []}


def is_proven(result: dg.ExecuteInProcessResult) -> bool:
    """Whether no output of the run was found to be other than written."""
    return all(e.passed for e in result.get_asset_check_evaluations() if e.check_name == ZERO_LOSS)


def _total(values: dict[str, Any], name: str) -> int:
    return sum((values.get(name) or {}).values())


def _number(values: dict[str, Any], name: str) -> int:
    return int(values.get(name) or 0)


def _seconds(instance: dg.DagsterInstance, run_id: str) -> dict[str, float]:
    return {
        stats.step_key: stats.end_time - stats.start_time
        for stats in instance.get_run_step_stats(run_id)
        if stats.end_time and stats.start_time
    }
