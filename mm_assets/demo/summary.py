"""A table of what a run made: one line an asset."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from mm_assets.io_managers.base import LANDED
from mm_assets.io_managers.events import URI
from mm_assets.io_managers.prover import ZERO_LOSS

_LONGEST = 300  # characters of a reason


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
    for row in [header, *rows]:
        name, *numbers, place = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([name.strip().ljust(len(name)), *numbers, place.strip()]).rstrip())
    failed = [e for e in result.get_asset_check_evaluations() if not e.passed]
    for evaluation in failed:
        summary = str(getattr(evaluation.metadata.get("summary"), "value", ""))
        if evaluation.partition is not None or evaluation.check_name == LANDED:  # of other checks the shards say it all
            of = evaluation.partition or ", ".join(str(s) for s in getattr(evaluation.metadata.get("shards"), "value", None) or [])
            told = f"{of}: {summary[:_LONGEST]}" if summary else of
            print(f"check failed: {evaluation.asset_key.to_user_string()}.{evaluation.check_name}: {told}")
    for error in _errors(instance, result.run_id):
        print(error)
    examined = [e for e in result.get_asset_check_evaluations() if e.check_name == ZERO_LOSS and e.partition]
    broken = sum(not e.passed for e in examined)
    shards, outputs = len({e.partition for e in examined}), len({e.asset_key for e in examined})
    if broken:
        print(f"NOT PROVEN: {broken} of {len(examined)} shards of outputs are not as they were written; the next run makes them again")
    elif examined:
        print(f"proven: every item of {shards} shards is in {outputs} outputs as it was written (proof/proof.json)")
    print(f"raw shards: {raw}; checks failed: {len(failed)}")


def is_proven(result: dg.ExecuteInProcessResult) -> bool:
    """Whether no output of the run was found to be other than written."""
    return all(e.passed for e in result.get_asset_check_evaluations() if e.check_name == ZERO_LOSS)


def _errors(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """The first line of every error that names a shard, without those that only follow from another asset's; and why steps failed."""
    entries = [record.event_log_entry for record in instance.get_records_for_run(run_id).records]
    steps = [
        f"step {e.dagster_event.step_key} failed: {_cause(e.dagster_event.step_failure_data.error)}"
        for e in entries
        if e.dagster_event is not None and e.dagster_event.is_step_failure and not str(e.dagster_event.step_key).endswith(LANDED)
    ]
    messages = [e.user_message.splitlines()[0] for e in entries if int(e.level) >= logging.ERROR and e.user_message.startswith("shard ")]
    return [*(message for message in messages if "failed in this run" not in message), *steps]


def _cause(error: Any) -> str:
    while error is not None and error.cause is not None:
        error = error.cause
    return " ".join(str(error.message).split())[:_LONGEST] if error is not None else "no reason given"


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
