"""Causes of alerts in checks and counts: failed asset checks, and shares of items that are not as usual.

* `failed_checks`: counted by the backfill or run that evaluated the shards last.
* `Shares`: shares of items by run, kept up from tick to tick: only materializations that are new are read.
  `drift` compares how many a filter keeps with earlier runs, `loss` how many are lost to quarantine with a
  limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import dagster as dg

from mm_assets.automation.alerts import NAMED, Cause, Kind, Origin
from mm_assets.automation.alerts.runs import View
from mm_assets.graph import LOSS_SHARE, LOSS_SHARE_OF, instance_queries
from mm_assets.graph.dagster_internals import SHARDS, attempts_without_result
from mm_assets.graph.io_manager import LANDED
from mm_assets.model.errors import counted

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
        in_progress: series of checks that failed in a run which has not ended, or for shards that are being
            made again.
    """

    causes: list[Cause]
    missing: list[Cause]
    in_progress: set[str]


def failed_checks(
    view: View,
    checks: Iterable[dg.AssetCheckKey],
    missing: Sequence[Cause] = (),
    attempted: Mapping[str, Collection[str]] | None = None,
) -> FailedChecks:
    """Return the checks that fail now, by runs that have ended.

    A shard that failed a check, and for that did not land, is one cause: that it did not land. While a shard
    is being made again, nothing is known of its checks.

    Args:
        missing: shards that did not land.
        attempted: shards that are being made, by asset.
    """
    found = FailedChecks([], [], set())
    notes: dict[str, list[str]] = defaultdict(list)
    for check in checks:
        pending = {
            key for asset, keys in (attempted or {}).items() if _leads_to(view, check, asset) for key in keys
        }
        for cause in _failures(view, check, found.in_progress):
            had_shards = bool(cause.shards)
            if had_shards and pending:
                cause = _with_shards(view, check, cause)
                if common := pending.intersection(cause.failing):
                    found.in_progress.add(cause.series)
                    cause = cause.without(common)
            for other in missing:
                if not cause.shards or other.severity != "error" or not _leads_to(view, check, other.subject):
                    continue
                cause = cause if cause.failing else _with_shards(view, check, cause)
                common = set(cause.failing.keys() & other.failing.keys())
                if common and cause.origin != other.origin:  # a later attempt, which did not evaluate it
                    asset = dg.AssetKey.from_user_string(other.subject)
                    attempts = attempts_without_result(view.instance, asset, common, cause.run_ids)
                    common = set(attempts)
                if common:
                    notes[other.key].append(f"{cause.subject}.{check.name} ({len(common)})")
                    cause = cause.without(common)
            if cause.shards or not had_shards:
                found.causes.append(_with_errors(cause))
    for other in missing:
        figures = {"failed checks": ", ".join(notes[other.key])} if other.key in notes else {}
        found.missing.append(replace(other, figures={**other.figures, **figures}))
    return found


def _leads_to(view: View, check: dg.AssetCheckKey, subject: str) -> bool:
    """Return whether a check is one of an asset, or of one that it is made from."""
    asset = dg.AssetKey.from_user_string(subject)
    return check.asset_key == asset or check.asset_key in view.ancestors(asset)


def detailed(view: View, cause: Cause) -> Cause:
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
    return view.sized(
        cause, {str(evaluation.partition): "; ".join(_lines(evaluation)) for evaluation in found}
    )


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
    earlier = set(view.runs_of(told)).difference(runs)
    cause = cause.without(instance_queries.failed_since_in(view.instance, check, cause.failing, earlier))
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
        if row.run_id in runs and not view.has_ended(runs[row.run_id]):
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


FILTERED, CURATED = dg.AssetKey("filtered_parquet"), dg.AssetKey("curated_parquet")

COMPARED_RUNS = 20
_FEWEST_RUNS = 5  # with fewer, nothing is known of what is usual
_DEVIATIONS = 3.0
_SMALLEST = 0.02  # a difference below is none, however steady the share was so far

_PAGE, _PAGES = 500, 4  # materializations read in one tick
_ORIGINS = 5  # backfills, or runs, that are kept apart


@dataclass
class OriginShare:
    """Items of one backfill or run.

    Args:
        part: items kept, or lost.
        whole: all items.
        above: shards of which a larger share is lost than is allowed.
        before: shares of the runs before it, that of the latest last.
    """

    part: float = 0.0
    whole: float = 0.0
    above: int = 0
    before: list[float] = field(default_factory=list)


@dataclass
class Shares:
    """Shares of the latest runs of one asset.

    Args:
        cursor: storage id of the last materialization that has been read.
        runs: the latest runs, each as id, backfill or run it belongs to, part and whole.
        origins: the latest backfills or runs by id.
    """

    cursor: int | None = None
    runs: list[list[Any]] = field(default_factory=list)
    origins: dict[str, OriginShare] = field(default_factory=dict)

    @classmethod
    def stored(cls, values: Mapping[str, Any] | None) -> Shares:
        """Return them from the values of `plain`."""
        if not values:
            return cls()
        origins = {key: OriginShare(**share) for key, share in values["origins"].items()}
        return cls(values["cursor"], values["runs"], origins)

    def plain(self) -> dict[str, Any]:
        """Return plain values to be stored."""
        return asdict(self)

    def read(self, view: View, asset: dg.AssetKey, limit: float = 1.0) -> None:
        """Add the materializations since the last call; the first one begins with the latest.

        Args:
            limit: share of a shard that may be lost.
        """
        for record in self._new_records(view.instance, asset):
            event = record.asset_materialization
            self.cursor = record.storage_id
            found = _items(event.metadata) if event and "unchanged" not in event.metadata else None
            if found is None or not found[1]:
                continue
            part, whole = found
            run = view.runs([record.run_id]).get(record.run_id)
            self._add(record.run_id, view.origin(run).id if run else record.run_id, part, whole)
            self.origins[self.runs[-1][1]].above += part / whole > limit

    def _add(self, run_id: str, origin: str, part: float, whole: float) -> None:
        if origin not in self.origins:
            before = [run[2] / run[3] for run in self.runs if run[1] != origin]
            self.origins[origin] = OriginShare(before=before[-COMPARED_RUNS:])
        share = self.origins.pop(origin)
        share.part, share.whole = share.part + part, share.whole + whole
        self.origins[origin] = share  # the latest last
        self.origins = dict(list(self.origins.items())[-_ORIGINS:])
        position = next((n for n, run in enumerate(self.runs) if run[0] == run_id), None)
        run: list[Any] = [run_id, origin, 0.0, 0.0] if position is None else self.runs.pop(position)
        self.runs = [*self.runs, [run_id, origin, run[2] + part, run[3] + whole]][-2 * COMPARED_RUNS :]

    def _new_records(self, instance: dg.DagsterInstance, asset: dg.AssetKey) -> list[dg.EventLogRecord]:
        if self.cursor is None:
            latest = instance.fetch_materializations(asset, limit=_PAGE).records
            return list(reversed(latest))
        records: list[dg.EventLogRecord] = []
        cursor = self.cursor
        for _ in range(_PAGES):
            wanted = dg.AssetRecordsFilter(asset, after_storage_id=cursor)
            page = instance.fetch_materializations(wanted, limit=_PAGE, ascending=True).records
            records += page
            if len(page) < _PAGE:
                break
            cursor = page[-1].storage_id
        return records


def drift(view: View, kept: Shares) -> list[Cause]:
    """Return a cause if the latest backfill or run keeps another share of items than the runs before it.

    Usual is the median of the last 20 runs before. Another share is one that is farther from it than three
    times the spread of these runs (the median absolute deviation, scaled to a standard deviation), and than
    two percentage points. Single odd runs bend neither.
    """
    origin, share = _latest(kept)
    if share is None or len(share.before) < _FEWEST_RUNS:
        return []
    usual = median(share.before)
    spread = 1.4826 * median(abs(other - usual) for other in share.before)
    allowed = max(_DEVIATIONS * spread, _SMALLEST)
    now = share.part / share.whole
    if abs(now - usual) <= allowed:
        return []
    figures = {
        "kept": f"{now:.1%} of {counted(round(share.whole), 'item')}",
        "usual": f"{usual:.1%} (median of {len(share.before)} runs), {allowed:.1%} more or less",
    }
    return [
        Cause(Kind.DRIFT, FILTERED.to_user_string(), origin=_origin_of_share(view, origin), figures=figures)
    ]


def loss(view: View, lost: Shares, most: float) -> list[Cause]:
    """Return a cause if the latest backfill or run lost a larger share of items than ``most``, or shards did.

    A shard that loses more does not land, so this is about data that were made under another MM_MAX_LOSS, or
    that count as lost for another reason.
    """
    origin, share = _latest(lost)
    if share is None or not (share.above or share.part / share.whole > most):
        return []
    figures = {
        "lost": f"{share.part / share.whole:.1%} of {counted(round(share.whole), 'item')}",
        "MM_MAX_LOSS": f"{most:g}",
    }
    return [
        Cause(
            Kind.LOSS,
            CURATED.to_user_string(),
            origin=_origin_of_share(view, origin),
            shards=share.above,
            figures=figures,
        )
    ]


def _latest(shares: Shares) -> tuple[str, OriginShare | None]:
    return next(reversed(shares.origins.items()), ("", None))


def _origin_of_share(view: View, origin_id: str) -> Any:
    run = view.runs([origin_id]).get(origin_id)
    return view.origin(run) if run else view.backfill(origin_id)


def _items(metadata: Mapping[str, dg.MetadataValue]) -> tuple[float, float] | None:
    """Return the items kept, or lost, and all of them; None where an event says neither."""

    def number(name: str) -> float | None:
        value = metadata[name].value if name in metadata else None
        return float(value) if isinstance(value, int | float) else None

    share, of = number(LOSS_SHARE), number(LOSS_SHARE_OF)
    if share is not None and of is not None:
        return share * of, of
    rows, items = number("dagster/partition_row_count"), number("items_in")
    return (rows, items) if rows is not None and items is not None else None
