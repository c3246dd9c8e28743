"""Summary table of a run: one line per asset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from mm_assets.accounting.outputs import CURATED, OUTPUTS
from mm_assets.demo.problems import problem_lines
from mm_assets.formats.format_table import format_by_suffix
from mm_assets.io_managers.base import LANDED
from mm_assets.io_managers.events import URI
from mm_assets.io_managers.proof_resource import ZERO_LOSS
from mm_assets.io_managers.shard_work import LOSS_SHARE, LOSS_SHARE_OF

_NAMED = 5  # shards in a line


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


def print_summary(
    instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult, raw: str, keys: Collection[str]
) -> None:
    """Print the problems of a run, a table of its outputs, and what is proven of its shards (``keys``).

    The table has partitions, samples, images, bytes, seconds and folder of every asset.
    """
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
            line.places.add(_folder(str(uri)))
    seconds = _seconds(instance, result.run_id)
    header = (
        "asset",
        "partitions",
        "unchanged",
        "samples",
        "images",
        "filtered",
        "quarantined",
        "MB",
        "seconds",
        "where",
    )
    rows = [
        (name, str(line.partitions), str(line.unchanged), str(line.samples or ""), str(line.images),
         str(line.filtered or ""), str(line.quarantined or ""), f"{line.bytes / 1e6:.1f}",
         f"{seconds.get(name, 0):.1f}", ", ".join(sorted(line.places)))
        for name, line in lines.items()
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows] if rows else []:
        name, *numbers, place = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([name.strip().ljust(len(name)), *numbers, place.strip()]).rstrip())
    print(_proof_line(result, keys))
    failed = sum(not e.passed and e.partition is not None for e in result.get_asset_check_evaluations())
    bad = len(_failed_shards(result))
    lost = f"members and items lost{' of the others' if bad else ''}: {loss_share(result):.0%}"
    print(f"raw shards: {raw}; shards failed: {bad}; {lost}; checks failed: {failed}")


def is_proven(result: dg.ExecuteInProcessResult, keys: Collection[str]) -> bool:
    """Return whether each of the run's shards was found in every output as it was written."""
    return not _unproven(result, keys)


def loss_share(result: dg.ExecuteInProcessResult) -> float:
    """Return the share of lost members and items in all published shards, 0 to 1."""
    lost = total = 0.0
    for event in result.asset_materializations_for_node(CURATED.asset):
        share, of = (event.metadata.get(name) for name in (LOSS_SHARE, LOSS_SHARE_OF))
        if share is not None and of is not None:
            lost += float(str(share.value)) * float(str(of.value))
            total += float(str(of.value))
    return lost / total if total else 0.0


def _proof_line(result: dg.ExecuteInProcessResult, keys: Collection[str]) -> str:
    unproven = _unproven(result, keys)
    proven = len(keys) - len(unproven)
    if not unproven:
        return (
            f"proven: every item of {proven} shards is in {len(OUTPUTS)} outputs "
            "as it was written (proof/proof.json)"
        )
    named = "; ".join(f"{key} {reason}" for key, reason in list(unproven.items())[:_NAMED])
    more = f"; and {len(unproven) - _NAMED} more" if len(unproven) > _NAMED else ""
    return (
        f"NOT PROVEN: {proven} of {len(keys)} shards in all {len(OUTPUTS)} outputs; the others: {named}{more}"
    )


def _unproven(result: dg.ExecuteInProcessResult, keys: Collection[str]) -> dict[str, str]:
    """Return for each shard that is not proven to be in every output the reason."""
    verdicts: dict[tuple[str, str], bool] = {}
    for evaluation in result.get_asset_check_evaluations():
        if evaluation.check_name == ZERO_LOSS and evaluation.partition:
            verdicts[evaluation.partition, evaluation.asset_key.to_user_string()] = evaluation.passed
    failed = _failed_shards(result)
    unproven: dict[str, str] = {}
    for key in keys:
        if changed := [each.asset for each in OUTPUTS if verdicts.get((key, each.asset)) is False]:
            unproven[key] = f"not as written in {', '.join(changed)}; the next run makes it again"
        elif (failed_in := failed.get(key)) is not None:
            unproven[key] = f"failed in {failed_in}"
        elif absent := [each.asset for each in OUTPUTS if (key, each.asset) not in verdicts]:
            unproven[key] = f"not examined in {', '.join(absent)}"
    return unproven


def _failed_shards(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """Return for each failed shard the first asset, in the order of the graph, that lacks it."""
    landed = [e for e in result.get_asset_check_evaluations() if e.check_name == LANDED]
    failed: dict[str, str] = {}
    for evaluation in landed:
        for key in getattr(evaluation.metadata.get("shards"), "value", None) or []:
            failed.setdefault(str(key), evaluation.asset_key.to_user_string())
    return failed


def _folder(uri: str) -> str:
    """The folder of an output, or the table that it shares with all others."""
    found = format_by_suffix(uri)
    return uri if found is not None and found.is_table else uri.rpartition("/")[0]


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
