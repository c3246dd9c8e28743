"""Failed asset checks, counted by the backfill or run that evaluated the shards last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class FailedChecks:
    """The checks that fail now.

    Args:
        causes: one for each backfill or run that found it.
        missing: the shards that did not land, with the checks that they failed then.
        in_progress: series of checks that failed in a run which has not ended.
    """

    causes: list[Cause]
    missing: list[Cause]
    in_progress: set[str]


def failed_checks(
    view: View, checks: Iterable[dg.AssetCheckKey], missing: Sequence[Cause] = ()
) -> FailedChecks:
    """Return the checks that fail now, by runs that have ended.

    A shard that failed a check, and for that did not land, is one cause: that it did not land.

    Args:
        missing: shards that did not land.
    """
    found = FailedChecks([], [], set())
    notes: dict[str, list[str]] = defaultdict(list)
    for check in checks:
        for cause in _failures(view, check, found.in_progress):
            had_shards = bool(cause.shards)
            for other in missing:
                if not cause.shards or not _is_part(view, check, cause, other):
                    continue
                cause = cause if cause.failing else _with_shards(view, check, cause)
                if common := cause.failing.keys() & other.failing.keys():
                    notes[other.key].append(f"{cause.subject}.{check.name} ({len(common)})")
                    cause = cause.without(common)
            if cause.shards or not had_shards:
                found.causes.append(_with_errors(cause))
    for other in missing:
        figures = {"failed checks": ", ".join(notes[other.key])} if other.key in notes else {}
        found.missing.append(replace(other, figures={**other.figures, **figures}))
    return found


def _is_part(view: View, check: dg.AssetCheckKey, cause: Cause, missing: Cause) -> bool:
    """Return whether shards failed a check on the way to where they did not land."""
    asset = dg.AssetKey.from_user_string(missing.subject)
    return (
        cause.origin == missing.origin
        and missing.severity == "error"
        and (check.asset_key == asset or check.asset_key in view.ancestors(asset))
    )


def with_names(view: View, cause: Cause) -> Cause:
    """Return the cause of a failed check with the first shards that fail it, and what was found."""
    check = dg.AssetCheckKey(dg.AssetKey.from_user_string(cause.subject), cause.detail)
    found = instance_queries.failing_evaluations(
        view.instance,
        check,
        cause.run_ids,
        NAMED,
        _partitions(view, check),
        over_all=not cause.shards,
        keys=cause.names if cause.failing else (),
    )
    if not cause.shards:
        lines = {line: "" for evaluation in found for line in _lines(evaluation)}
        return replace(cause, names=lines | _shards(found[0]) if found else lines)
    names = {str(evaluation.partition): "; ".join(_lines(evaluation)) for evaluation in found}
    of = view.size(cause.origin, check.asset_key) if cause.origin else 0
    return replace(cause, names=names, of=max(of, cause.shards) if of else 0)


def new_part(view: View, cause: Cause, told: Collection[str]) -> Cause | None:
    """Return the cause with the shards only that did not fail the check before.

    Args:
        told: ids of backfills and runs whose failures of this check were told.

    Returns:
        None: nothing of it is new.
    """
    check = dg.AssetCheckKey(dg.AssetKey.from_user_string(cause.subject), cause.detail)
    assert cause.origin is not None, "what belongs to no run has no earlier one"
    runs = view.run_ids(cause.origin)
    if not cause.shards:
        before = instance_queries.evaluation_before(view.instance, check, runs)
        if before is None or view.origin_id(before[0]) not in told or before[1].passed:
            return cause
        now = instance_queries.failing_evaluations(view.instance, check, cause.run_ids, 1, over_all=True)
        return None if now and _lines(now[0]) == _lines(before[1]) else cause
    cause = cause if cause.failing else _with_shards(view, check, cause)
    earlier = instance_queries.failed_before(view.instance, check, cause.failing, runs)
    view.runs(earlier.values())  # one query for all of them
    cause = cause.without({key for key, run_id in earlier.items() if view.origin_id(run_id) in told})
    return _with_errors(cause) if cause.shards else None


def _with_shards(view: View, check: dg.AssetCheckKey, cause: Cause) -> Cause:
    return cause.of_shards(
        instance_queries.failing_partitions(view.instance, check, cause.run_ids, _partitions(view, check))
    )


def _with_errors(cause: Cause) -> Cause:
    """Return the cause with the number of its errors, where there are warnings besides."""
    if not cause.failing:
        return cause
    errors = sum(shard.is_error for shard in cause.failing.values())
    return replace(cause, figures=_figures(errors, cause.shards))


def _figures(errors: int, shards: int) -> dict[str, str]:
    return {"with severity ERROR": str(errors)} if 0 < errors < shards else {}


def _failures(view: View, check: dg.AssetCheckKey, in_progress: set[str]) -> list[Cause]:
    rows = instance_queries.failing_by_run(view.instance, check, _partitions(view, check))
    runs = view.runs(row.run_id for row in rows)  # one query for all of them
    asset = check.asset_key.to_user_string()
    by_origin: dict[Origin | None, list[instance_queries.FailingRun]] = defaultdict(list)
    for row in rows:
        if row.run_id in runs and not runs[row.run_id].is_finished:
            in_progress.add(Cause(Kind.CHECK, asset, check.name).series)
        elif row.shards:
            by_origin[_origin(view, row.run_id)].append(row)
    if not any(row.shards for row in rows):
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
                figures=_figures(errors, shards),
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
