"""Planned jobs: the parent's side of each shard, from its settings to the events of the run.

* `readable_settings`: what an output is made by, in a form that people can compare: code version, steps with
  their settings, options.
* `ShardReports`: results as events of a run: a materialization or an error, then check evaluations.
* `metadata_values`: Dagster metadata of plain values.
* `CheckLog`: check outcomes in batches: one evaluation per shard, tied to its materialization, then one over
  all shards.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
import time
import warnings
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import dagster as dg

from mm_assets.accounting import ShardRecord
from mm_assets.graph import (
    INPUT_MISSING,
    NO_RAW_SHARD,
    Check,
    Plan,
    Shard,
    ShardResult,
    dagster_internals,
    digest,
    instance_queries,
)
from mm_assets.graph.dagster_internals import (
    REASON,
    SHARDS,
    TRIED_WITH,
    URI,
    SeenCodeVersions,
    provenance,
    tried_with,
)
from mm_assets.storage import without_secrets


def is_intact(record: ShardRecord, stat: Mapping[str, Any] | None) -> bool:
    """Return whether the output is still the recorded one.

    A shard without content may have no output (an empty tar is never written).
    """
    is_same = stat == record.stat or digest(stat) == digest(record.stat)
    return is_same and not (stat is None and record.uri)


def recorded_result(record: ShardRecord) -> ShardResult:
    """Return the result of the worker that made the recorded shard."""
    checks = tuple(Check(**check) for check in record.checks)
    return ShardResult(
        record.key, ok=True, uri=record.uri, version=record.version, metadata=record.metadata, checks=checks
    )


def readable_settings(code_version: str, plan: Plan, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values for the record of a shard, so that two versions can be compared by people.

    Whether a shard is made again is decided by the digest ``made_by`` alone, never by this.

    Args:
        code_version: code version of the asset.
        plan: its steps and checks.
        options: options of its IO manager.
    """
    settings: dict[str, Any] = {"code_version": code_version, "options": dict(options)}
    for step in (part for whole in plan.steps for part in getattr(whole, "parts", (whole,))):
        fields = {f.name: getattr(step, f.name) for f in dataclasses.fields(step) if f.compare}
        values = {name: _plain(value) for name, value in fields.items() if value is not None}
        if version := getattr(type(step), "version", ""):
            values["version"] = version
        settings.setdefault("steps", {})[getattr(step, "name", type(step).__qualname__)] = values
    if versions := {check.name: check.version for check in plan.checks if check.version}:
        settings["checks"] = versions
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _plain(value: Any) -> Any:
    """Return an unset bound as text: JSON has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def metadata_values(plain: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Return plain values (see `ShardResult`) as Dagster metadata.

    Markdown, JSON, table schema, path and URL get their own type. Numbers and text stay as they are.

    Raises:
        ValueError: for a value of another kind.
    """
    return {name: _metadata_value(name, value) for name, value in plain.items()}


def _metadata_value(name: str, value: Any) -> dg.MetadataValue:
    match value:
        case bool():
            return dg.MetadataValue.bool(value)
        case int():
            return dg.MetadataValue.int(value)
        case float():
            return dg.MetadataValue.float(value)
        case str():
            return dg.MetadataValue.text(value)
        case {"md": str(text), **rest} if not rest:
            return dg.MetadataValue.md(text)
        case {"json": content, **rest} if not rest:
            return dg.MetadataValue.json(content)
        case {"path": str(path), **rest} if not rest:
            return dg.MetadataValue.path(path)
        case {"url": str(url), **rest} if not rest:
            return dg.MetadataValue.url(url)
        case {"table_schema": columns, **rest} if not rest:
            return _table_schema(tuple((column, kind) for column, kind in columns))
    raise ValueError(f"metadata {name!r} has a value no rule covers: {value!r}")


def bare_values(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values without the names of their types, as the metadata of an event have them."""
    return {name: _bare(value) for name, value in plain.items()}


def _bare(value: Any) -> Any:
    match value:
        case (
            {"md": bare, **rest} | {"json": bare, **rest} | {"path": bare, **rest} | {"url": bare, **rest}
        ) if not rest:
            return bare
    return value


@lru_cache(maxsize=64)  # shards of a dataset share theirs
def _table_schema(columns: tuple[tuple[str, str], ...]) -> dg.MetadataValue:
    return dg.MetadataValue.table_schema(
        dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns])
    )


# Evaluations are batched, so that one query finds the materializations of all. Limits of a batch: shards,
# seconds.
_BATCH_SHARDS = 50
_MAX_WAIT_SECONDS = 2.0
_LISTED_SHARDS = 50
_MAX_FAILURES = 500  # of other runs, the latest first


class CheckLog:
    """Logs the checks of one asset from within a step.

    Add each shard's outcomes after the shard's materialization was logged. Call `finish` once all shards are
    known.

    Args:
        log_event: logs an event of the step, see `event_logger`.
        checks: specs of the checks that this step may evaluate, by name; outcomes of others are ignored.
        tried: shards of the run, also those that nothing is added of.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        run_id: str,
        log_event: Callable[[Any], None],
        asset: dg.AssetKey,
        checks: Mapping[str, dg.AssetCheckSpec],
        tried: Iterable[str] = (),
    ) -> None:
        self._instance = instance
        self._run_id = run_id
        self._log_event = log_event
        self._asset = asset
        self._specs = checks
        self._pending: dict[str, Sequence[Check]] = {}
        self._pending_since = 0.0
        self._evaluated: dict[str, dict[str, Check]] = {}  # check -> shard -> outcome
        self._tried: set[str] = set(tried)

    def add(self, shard: str, checks: Sequence[Check]) -> None:
        """Log these outcomes with the next shard's, a batch, or `finish`: the last ones with it alone."""
        self._tried.add(shard)
        known = [check for check in checks if check.name in self._specs]
        if not known:
            return
        if len(self._pending) >= _BATCH_SHARDS or time.monotonic() - self._pending_since > _MAX_WAIT_SECONDS:
            self._flush()
        self._pending_since = self._pending_since if self._pending else time.monotonic()
        self._pending[shard] = known
        for check in known:
            self._evaluated.setdefault(check.name, {})[shard] = check

    def finish(self, problems: Mapping[str, Sequence[str]] | None = None) -> None:
        """Log pending outcomes, and one evaluation over all shards for each check evaluated here.

        The asset's overview shows the evaluation over all shards. A check that was planned for a shard but
        never evaluated (the shard failed before) counts as not evaluated.

        Args:
            problems: lines by check that concern no shard in particular. The evaluation over all shards lists
                them and fails.
        """
        instance_queries.withdraw_planned(
            self._instance, self._run_id, [spec.key for spec in self._specs.values()], self._tried
        )
        latest = dagster_internals.latest_of_asset(self._instance, self._asset)
        problems = {name: lines for name, lines in (problems or {}).items() if lines}
        names = [name for name in self._specs if name in self._evaluated or name in problems]
        partitions = self._partitions() if names else 0
        over_all = [
            self._over_all(
                self._specs[name], self._evaluated.get(name, {}), latest, problems.get(name, ()), partitions
            )
            for name in names
        ]
        # Nothing is asked between these events, so they are written together: a process that is killed never
        # leaves all shards evaluated, and nothing over all of them, which no later run would miss.
        self._flush()
        for evaluation in over_all:
            self._log_event(evaluation)

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        if not pending:
            return
        found = dagster_internals.targets(self._instance, self._asset, pending)
        for shard, checks in pending.items():
            for check in checks:
                self._log_event(_evaluation(self._specs[check.name], shard, check, found.get(shard)))

    def _partitions(self) -> int:
        """Return the number of partitions of the asset, which all its checks share."""
        for spec in self._specs.values():
            if spec.partitions_def is not None:
                return len(spec.partitions_def.get_partition_keys(dynamic_partitions_store=self._instance))
        return 0

    def _over_all(
        self,
        spec: dg.AssetCheckSpec,
        outcomes: Mapping[str, Check],
        latest: dagster_internals.Latest | None,
        problems: Sequence[str],
        partitions: int,
    ) -> dg.AssetCheckEvaluation:
        bad = {
            shard: str(check.metadata.get("summary", ""))
            for shard, check in outcomes.items()
            if not check.passed
        }
        severities = {check.severity for check in outcomes.values() if not check.passed}
        for shard, evaluation in instance_queries.failing_shards(
            self._instance, spec.key, _MAX_FAILURES
        ).items():
            if shard not in outcomes:
                summary = evaluation.metadata.get("summary")
                bad[shard] = "" if summary is None else str(summary.value)
                severities.add(evaluation.severity.name)
        listed = dict(sorted(bad.items())[:_LISTED_SHARDS])
        return dg.AssetCheckEvaluation(
            asset_key=spec.asset_key,
            check_name=spec.name,
            passed=not bad and not problems,
            severity=dg.AssetCheckSeverity.WARN
            if severities == {"WARN"} and not problems
            else dg.AssetCheckSeverity.ERROR,
            blocking=spec.blocking,
            metadata=metadata_values(
                {
                    "shards": {"json": listed},
                    "failed": len(bad),
                    "of": partitions if spec.partitions_def is not None else 0,
                    "evaluated_in_this_run": len(outcomes),
                    **({"problems": {"json": list(problems)[:_LISTED_SHARDS]}} if problems else {}),
                }
            ),
            target_materialization_data=dagster_internals.target(latest),
        )


def _evaluation(spec: dg.AssetCheckSpec, shard: str, check: Check, target: Any) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=spec.asset_key,
        check_name=spec.name,
        passed=check.passed,
        partition=shard,
        severity=dg.AssetCheckSeverity[check.severity],
        blocking=spec.blocking,
        metadata=metadata_values(check.metadata),
        target_materialization_data=target,
    )


_FAILURE = re.compile(
    r"""shard (?P<key>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*") of (?P<asset>\S+): (?P<error>.*)"""
)

SETTINGS_MARK = "+"
_NOT_LANDED = "The shard was not published. The metadata say why, and what to do."


def _what_to_do(key: str, error: str) -> str:
    """Return how a shard that failed is made, for people who look at its page in the UI."""
    name = f"{'-- ' if key.startswith('-') else ''}{shlex.quote(key)}"
    again = (
        f"run `mm-assets run {name}`, or launch the job `refresh` in the UI: both make the shard in all "
        "assets. The button Materialize on this page makes it in this asset alone."
    )
    retire = f"`mm-assets retire {name}` removes its outputs and its partition"
    if error.startswith(INPUT_MISSING) and NO_RAW_SHARD in error:
        return f"The raw shard is gone: {retire}. Or put it back, or mend MM_RAW_SHARDS; then {again}"
    if error.startswith(INPUT_MISSING):
        return (
            "Nothing is wrong in this asset: an input is missing. Do what the page of that asset says of "
            f"this partition; then {again}"
        )
    return (
        "Mend or replace the raw shard, or change the setting that refuses it; nothing, if a disk, a store "
        f"or a process has failed. Then {again} The outputs of the version before stay until then. If the "
        f"raw shard is gone for good, {retire}."
    )


def version_with_settings(code_version: str, made_by: str) -> str:
    """Return the code version of an asset that names its settings by a digest."""
    return f"{code_version}{SETTINGS_MARK}{made_by[:8]}"


@dataclass(frozen=True)
class Failure:
    """Failure of a shard of an asset.

    As text it is the first line of its log message. ``error`` is the reason.
    """

    key: str
    asset: str
    error: str

    def __str__(self) -> str:
        return f"shard {self.key!r} of {self.asset}: {self.error}"


def parse_failure(message: str) -> Failure | None:
    """Return the failure that a log message reports; None for any other message."""
    match = _FAILURE.match(message)
    return Failure(literal_eval(match["key"]), match["asset"], match["error"]) if match else None


def materialization(
    asset: dg.AssetKey, result: ShardResult, unchanged: bool, tags: Mapping[str, str] | None = None
) -> dg.AssetMaterialization:
    """Return the event that a published shard has."""
    metadata = dict(result.metadata) | ({"unchanged": True} if unchanged else {})
    if result.uri:
        metadata[URI] = result.uri
    return dg.AssetMaterialization(asset, partition=result.key, metadata=metadata_values(metadata), tags=tags)


class ShardReports:
    """Reports the shards of one asset from within its step, each as soon as its result is known."""

    def __init__(self, run: dg.AssetExecutionContext, asset: dg.AssetKey) -> None:
        self.asset = asset
        declared = run.assets_def.code_versions_by_key[asset] or ""
        self._declared = declared
        self._made_by = declared
        self._limit = ""
        self.code_version = declared.partition(SETTINGS_MARK)[0]
        self._run = run
        self._specs = {
            spec.name: spec
            for spec in run.assets_def.check_specs
            if spec.asset_key == asset and spec.key in run.selected_asset_check_keys
        }
        self.failed: dict[str, str] = {}
        self._log_event = dagster_internals.event_logger(run)
        self._checks = CheckLog(run.instance, run.run.run_id, self._log_event, asset, self._specs)

    @property
    def checks(self) -> frozenset[str]:
        """Names of the declared checks that are part of this run."""
        return frozenset(self._specs)

    @property
    def blocking(self) -> frozenset[str]:
        return frozenset(name for name, spec in self._specs.items() if spec.blocking)

    def begin(self, made_by: str, settings: Mapping[str, Any], limit: str) -> None:
        """Note the code version of the run; call it once, before any shard.

        Args:
            made_by: digest of the code and the settings that the shards are made by.
            settings: the same in readable form.
            limit: the setting of this run that refuses shards; empty: none does.
        """
        if SETTINGS_MARK in self._declared:  # those of this run: the launchpad may have changed them
            self._made_by = version_with_settings(self.code_version, made_by)
        seen = SeenCodeVersions(self._run.instance)
        seen.see(self.asset, self._made_by, settings)
        self._limit = limit
        if limit:
            seen.see_limit(self.asset, limit)

    def landed(self, result: ShardResult, parents: Mapping[str, Shard], unchanged: bool = False) -> None:
        """Log the shard's one materialization, and its checks."""
        tags = provenance(result.version, self._made_by, parents)
        self._log_event(materialization(self.asset, result, unchanged, tags))
        self._checks.add(result.key, result.checks)

    def failure(self, result: ShardResult) -> None:
        """Log why the shard was not published, and the checks that were evaluated.

        There is no materialization: Dagster shows the shard as failed. An observation tells the reason on the
        shard's own page, which else says no more than that the run failed.
        """
        error = result.error or "no reason given"
        self.failed[result.key] = error
        line = str(Failure(result.key, self.asset.to_user_string(), error))
        self._run.log.error(without_secrets(line + (f"\n{result.detail}" if result.detail else "")))
        self._log_event(
            dg.AssetObservation(
                self.asset,
                description=_NOT_LANDED,  # Markdown on some pages, so it has no text of data
                partition=result.key,
                metadata=metadata_values(
                    {
                        REASON: error,
                        "what_to_do": _what_to_do(result.key, error),
                        TRIED_WITH: tried_with(self._made_by, self._limit),
                    }
                ),
            )
        )
        self._checks.add(result.key, result.checks)

    def finish(self) -> None:
        """Log one evaluation over all shards for each check; call it once, after all shards."""
        self._checks.finish()


def specs_by_shard(asset: dg.AssetKey, descriptions: Mapping[str, str]) -> list[dg.AssetCheckSpec]:
    """Return specs of checks that are partitioned by shard.

    Args:
        descriptions: description of each check, by name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitioned checks: reviewed, pinned, tested
        return [
            dg.AssetCheckSpec(name, asset=asset, description=text, partitions_def=SHARDS)
            for name, text in descriptions.items()
        ]


def shards_to_check(context: dg.AssetCheckExecutionContext) -> list[str]:
    """Return the shards the run was launched for; all shards for a run without partitions."""
    keys = dagster_internals.keys_of_run(context.run, SHARDS, context.instance)
    return keys or sorted(SHARDS.get_partition_keys(dynamic_partitions_store=context.instance))


def report_shards(
    context: dg.AssetCheckExecutionContext,
    asset: dg.AssetKey,
    outcomes: Iterable[tuple[str, Sequence[Check]]],
    beyond_shards: Callable[[], Mapping[str, Sequence[str]]] = dict,
) -> Iterator[dg.Output[None]]:
    """Log the checks of each shard as they become known, then one evaluation over all shards for each check.

    Yields an empty output in the place of each check. For an `AssetCheckResult` Dagster would look for the
    one partition of the run, and a run of many, or of none, has no such thing.

    Args:
        outcomes: the shards with their outcomes.
        beyond_shards: returns, by check, problems of no shard in particular; called once all shards are
            known.
    """
    specs = {spec.name: spec for spec in context.check_specs if spec.key in context.selected_asset_check_keys}
    tried = dagster_internals.keys_of_run(context.run, SHARDS, context.instance)
    log_event = dagster_internals.event_logger(context.op_execution_context)
    log = CheckLog(context.instance, context.run.run_id, log_event, asset, specs, tried)
    for shard, checks in outcomes:
        log.add(shard, checks)
    log.finish(beyond_shards())
    for spec in specs.values():
        yield dg.Output(None, output_name=spec.get_python_identifier())
