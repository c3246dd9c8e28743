"""Problems of a run as lines for people: one per shard, with its cause but without consequences of it."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from mm_assets.accounting.records import ShardRecord
from mm_assets.checks.zero_loss import UNKNOWN_FILES
from mm_assets.formats.error_lines import error_line
from mm_assets.io_managers.base import LANDED
from mm_assets.io_managers.planned_jobs import recorded_result
from mm_assets.io_managers.raw_gate import CONTENT_TAKEN
from mm_assets.io_managers.reports import parse_failure

_LONGEST = 300  # limit of characters of a check's summary, and of a step's error
_OF_SYSTEM = re.compile(r"\[Errno (\d+)\] (.*?): '(.+)'")
# Errors of downstream assets for a shard that has failed before.
_CONSEQUENCES = ("input missing: ", "failed in this run")


@dataclass
class _Shard:
    """The problems of a shard.

    ``causes`` are by asset, in the order of the graph; ``checks`` did not pass; it is ``absent`` from these
    assets.
    """

    causes: dict[str, str] = field(default_factory=dict)
    checks: list[tuple[str, str]] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        return bool(self.causes or self.absent)

    def line(self, key: str) -> str:
        parts = [f"{asset}: {cause}" for asset, cause in self.causes.items()]
        if self.absent and not parts:
            parts = [f"{self.absent[0]}: did not land"]
        known = " ".join(self.causes.values())
        parts += [f"{check}: {summary[:_LONGEST]}" for check, summary in self.checks if summary not in known]
        return (
            f"shard {key!r} of {'; '.join(parts)}"
            if self.has_failed
            else f"shard {key!r}: {'; '.join(parts)}"
        )


@dataclass(frozen=True)
class Problems:
    """What went wrong in a run.

    Args:
        lines: on failed shards, on shards with failed checks, and on steps that failed as a whole.
        shards: those that have a line.
        failed: for each failed shard the first asset that it failed in. The log of the run tells; the check
            `landed` sees what another run may have made since.
    """

    lines: list[str]
    shards: frozenset[str]
    failed: dict[str, str]


def find_problems(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> Problems:
    """Return what went wrong in a run."""
    shards: dict[str, _Shard] = defaultdict(_Shard)
    entries = [record.event_log_entry for record in instance.get_records_for_run(result.run_id).records]
    for entry in entries:
        failure = parse_failure(entry.user_message) if int(entry.level) >= logging.ERROR else None
        if failure is not None:
            causes = shards[failure.key].causes
            if not causes or (
                failure.error not in causes.values()
                and not any(mark in failure.error for mark in _CONSEQUENCES)
            ):
                causes[failure.asset] = failure.error
    for evaluation in result.get_asset_check_evaluations():
        if not evaluation.passed and evaluation.check_name != CONTENT_TAKEN:  # has a line on all shards
            _note(evaluation, shards)
    failed = {
        key: next(iter([*shard.causes, *shard.absent])) for key, shard in shards.items() if shard.has_failed
    }
    ordered = sorted(shards, key=lambda key: (key not in failed, key))
    lines = [*(shards[key].line(key) for key in ordered), *_failed_steps(entries)]
    return Problems(lines, frozenset(shards), failed)


def recorded_problems(records: Mapping[str, Mapping[str, ShardRecord]]) -> Problems:
    """Return the failed checks of shards that need no run, from their records by asset and partition."""
    shards: dict[str, _Shard] = defaultdict(_Shard)
    for asset, by_key in records.items():
        for key, record in by_key.items():
            for check in recorded_result(record).checks:
                if not check.passed and check.name != CONTENT_TAKEN:
                    shards[key].checks.append(
                        (f"{asset}.{check.name}", str(check.metadata.get("summary") or "did not pass"))
                    )
    return Problems([shards[key].line(key) for key in sorted(shards)], frozenset(shards), {})


def _note(evaluation: dg.AssetCheckEvaluation, shards: dict[str, _Shard]) -> None:
    asset = evaluation.asset_key.to_user_string()
    if evaluation.check_name == LANDED:
        for key in _value(evaluation, "shards") or ():
            shards[str(key)].absent.append(asset)
    elif evaluation.partition is not None:  # evaluations over all shards repeat those of single shards
        name = f"{asset}.{evaluation.check_name}"
        shards[evaluation.partition].checks.append(
            (name, str(_value(evaluation, "summary") or "did not pass"))
        )


def _value(evaluation: dg.AssetCheckEvaluation, name: str) -> Any:
    return getattr(evaluation.metadata.get(name), "value", None)


def _failed_steps(entries: Iterable[dg.EventLogEntry]) -> list[str]:
    return [
        f"step {entry.dagster_event.step_key} failed: {_cause(entry.dagster_event.step_failure_data.error)}"
        for entry in entries
        if entry.dagster_event is not None
        and entry.dagster_event.is_step_failure
        and not str(entry.dagster_event.step_key).endswith(LANDED)
        and not _repeats_its_shards(entry.dagster_event.step_failure_data)
    ]


def _repeats_its_shards(failure: Any) -> bool:
    """Return whether a step failed for nothing but shards that have lines of their own."""
    given = failure.user_failure_data
    found = None if given is None else given.metadata.get(UNKNOWN_FILES)
    return found is not None and not found.value


def _cause(error: Any) -> str:
    """Return the error that Dagster's own errors wrap, without its class."""
    while error is not None and error.cause is not None and str(error.cls_name).startswith("Dagster"):
        error = error.cause
    if error is None:
        return "no reason given"
    line = re.sub(rf"^\S*\b{re.escape(str(error.cls_name))}: ", "", " ".join(str(error.message).split()))
    if match := _OF_SYSTEM.fullmatch(line):
        line = error_line(OSError(int(match[1]), match[2], match[3]))
    return line[:_LONGEST]
