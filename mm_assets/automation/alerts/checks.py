"""Failed asset checks, counted by the backfill or run that evaluated the shards last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import dagster as dg

from mm_assets.automation.alerts.cause import NAMED, Cause, Kind, Origin
from mm_assets.automation.alerts.view import View
from mm_assets.io_managers import instance_queries
from mm_assets.io_managers.base import LANDED
from mm_assets.partitions import SHARDS

_NO_RUN = ""  # the run of evaluations that were reported without one


def all_checks(view: View) -> list[dg.AssetCheckKey]:
    """Return the checks of the code location; `landed` tells of shards, which are a cause of their own."""
    return sorted(
        (key for key in view.repository.asset_graph.asset_check_keys if key.name != LANDED),
        key=lambda key: (key.asset_key, key.name),
    )


def checks_to_ask(view: View, active_runs: Iterable[str], open_keys: Iterable[str]) -> list[dg.AssetCheckKey]:
    """Return the checks that may fail now: those that failed in these runs, or in none, or were open.

    Args:
        open_keys: keys of causes that were open at the last tick.
    """
    runs = [*active_runs, _NO_RUN]
    known = {tuple(key.split("|")[1:3]) for key in open_keys if key.startswith(f"{Kind.CHECK}|")}
    return [
        check
        for check in all_checks(view)
        if (check.asset_key.to_user_string(), check.name) in known
        or instance_queries.has_failures(view.instance, check, runs)
    ]


def failed_checks(view: View, checks: Iterable[dg.AssetCheckKey]) -> list[Cause]:
    """Return the checks that fail now, one cause for each backfill or run that found it."""
    return [cause for check in checks for cause in _failures(view, check)]


def with_names(view: View, cause: Cause) -> Cause:
    """Return the cause of a failed check with the first shards that fail it, and what was found."""
    check = dg.AssetCheckKey(dg.AssetKey.from_user_string(cause.subject), cause.detail)
    found = instance_queries.failing_evaluations(
        view.instance, check, cause.run_ids, NAMED, _partitions(view, check), over_all=not cause.shards
    )
    if not cause.shards:
        lines = {line: "" for evaluation in found for line in _lines(evaluation)}
        return replace(cause, names=lines | _shards(found[0]) if found else lines)
    names = {str(evaluation.partition): "; ".join(_lines(evaluation)) for evaluation in found}
    of = view.size(cause.origin, check.asset_key) if cause.origin else 0
    return replace(cause, names=names, of=max(of, cause.shards) if of else 0)


def _failures(view: View, check: dg.AssetCheckKey) -> list[Cause]:
    rows = instance_queries.failing_by_run(view.instance, check, _partitions(view, check))
    view.runs(row.run_id for row in rows)  # one query for all of them
    by_origin: dict[Origin | None, list[instance_queries.FailingRun]] = defaultdict(list)
    for row in rows:
        if row.shards:
            by_origin[_origin(view, row.run_id)].append(row)
    asset = check.asset_key.to_user_string()
    if not by_origin:
        return [cause for row in rows if row.over_all and (cause := _over_all(view, check, row))]
    causes = []
    for origin, failing in by_origin.items():
        shards, errors = sum(row.shards for row in failing), sum(row.errors for row in failing)
        causes.append(
            Cause(
                Kind.CHECK,
                asset,
                check.name,
                origin,
                severity="error" if errors else "warn",
                shards=shards,
                figures={"with severity ERROR": str(errors)} if 0 < errors < shards else {},
                run_ids=tuple(sorted(row.run_id for row in failing)),
            )
        )
    return causes


def _over_all(view: View, check: dg.AssetCheckKey, row: instance_queries.FailingRun) -> Cause | None:
    """Return the cause of an evaluation that concerns no shard in particular.

    That of a check by shard sums up its shards. None of them fails now, so it counts only for problems beyond
    shards.
    """
    evaluations = instance_queries.failing_evaluations(view.instance, check, [row.run_id], 1, over_all=True)
    by_shard = view.repository.asset_graph.get(check).partitions_def is not None
    if not evaluations or (by_shard and "problems" not in evaluations[0].metadata):
        return None
    return Cause(
        Kind.CHECK,
        check.asset_key.to_user_string(),
        check.name,
        _origin(view, row.run_id),
        severity="error" if evaluations[0].severity == dg.AssetCheckSeverity.ERROR else "warn",
        run_ids=(row.run_id,),
    )


def _origin(view: View, run_id: str) -> Origin | None:
    """Return the backfill or run of an evaluation; None for one that a sensor made."""
    if run_id == _NO_RUN:
        return None
    run = view.runs([run_id]).get(run_id)
    return view.origin(run) if run else Origin(run_id, is_backfill=False)


def _partitions(view: View, check: dg.AssetCheckKey) -> str | None:
    return str(SHARDS.name) if view.is_sharded(check.asset_key) else None


def _shards(evaluation: dg.AssetCheckEvaluation) -> dict[str, str]:
    """Return the shards that an evaluation of no partition lists, with the reason of each."""
    listed = evaluation.metadata.get("shards")
    shards = listed.value if listed is not None else None
    if isinstance(shards, dict):
        return {str(name): str(reason) for name, reason in list(shards.items())[:NAMED]}
    return {str(name): "" for name in shards[:NAMED]} if isinstance(shards, list) else {}


def _lines(evaluation: dg.AssetCheckEvaluation) -> list[str]:
    """Return what an evaluation says in words."""
    problems = evaluation.metadata.get("problems")
    if problems is not None and isinstance(problems.value, list):
        return [str(line) for line in problems.value[:NAMED]]
    summary = evaluation.metadata.get("summary")
    text = str(summary.value) if summary is not None else evaluation.description or ""
    return [text] if text else []
