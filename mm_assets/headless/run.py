"""The headless run: raw shards through the graph, without a browser or a daemon.

* `run_graph` makes what is asked for, `prove` reads every output again, `find_status` changes nothing.
* `RunProgress`: shards, samples a second and time left on a terminal, for each asset.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any
from uuid import uuid4

import dagster as dg

from mm_assets.accounting import BY_ASSET, TARS, TRAINING, lists_folder
from mm_assets.automation import MISSING, STALE
from mm_assets.automation.backfills import Outlook, StatusFinder
from mm_assets.automation.sensors import report_inventory, schedules
from mm_assets.automation.whole_set import RESHARD, SCORED, duplicates_event
from mm_assets.definitions import build_definitions
from mm_assets.duplicates.finder import find_duplicates, has_verdicts
from mm_assets.filters.duplicates import duplicate_filters
from mm_assets.filters.known_hashes import opened_hash_lists
from mm_assets.formats.raw_shards import Listing
from mm_assets.graph.dagster_internals import SHARDS, chunks
from mm_assets.graph.instance_queries import STARTED_BY, fail_lost_runs, process_tag
from mm_assets.graph.resources import resources_from_environment
from mm_assets.headless.instance import home_in_force, open_instance, prepare_home, was_interrupted
from mm_assets.headless.request import (
    Look,
    MakeRequest,
    Records,
    Selection,
    altered_shards,
    known,
    look_at_all,
    note_run,
    partitioned_specs,
    select,
)
from mm_assets.headless.summary import RunSummary, failed_steps
from mm_assets.model.errors import counted, warning_line
from mm_assets.settings import Settings
from mm_assets.storage.errors import readable_store_errors
from mm_assets.storage.files import exists, refuse_unwritable
from mm_assets.terminal import INTERRUPTED, ProgressLine, fail, interrupted, shard_progress
from mm_assets.view.overview import Status
from mm_assets.view.statistics import compute_statistics, missing_statistics


class RunProgress:
    """Progress line on stderr, if that is a terminal; silent elsewhere.

    Args:
        total: shards to make, counted once for each asset.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._line = ProgressLine(total)
        self._done = 0
        self._started = time.monotonic()
        self._asset = ""
        self._shards_of_run = 0
        self._of_asset = self._samples = 0
        self._asset_started = 0.0

    def __enter__(self) -> RunProgress:
        return self

    def follow(self, instance: dg.DagsterInstance, run_id: str, shards: int) -> None:
        """Show the shards of a run as they land."""
        self._asset, self._shards_of_run = "", shards
        if self._line.is_shown:
            instance.add_event_listener(run_id, self._note)

    def print(self, text: str) -> None:
        """Print a line above the progress line, or alone where none is shown."""
        self._line.clear()
        print(text, flush=True)

    def _note(self, entry: dg.EventLogEntry) -> None:
        event = entry.dagster_event
        if event is None or not event.is_step_materialization:
            return
        materialization = event.step_materialization_data.materialization
        asset = materialization.asset_key.to_user_string()
        if asset != self._asset:
            self._asset, self._of_asset, self._samples = asset, 0, 0
            self._asset_started = time.monotonic()
        samples = materialization.metadata.get("samples")
        self._samples += int(str(samples.value)) if samples is not None else 0
        self._of_asset += 1
        self._done += 1
        self._show()

    def _show(self) -> None:
        seconds = time.monotonic() - self._started
        left = seconds / self._done * (self._total - self._done)
        rate = self._samples / max(time.monotonic() - self._asset_started, 0.001)
        samples = f", {rate:.0f} samples/s" if self._samples else ""
        shards = f"{self._asset} {self._of_asset}/{self._shards_of_run}"
        self._line.show(self._done, f"{shards}{samples}, {seconds:.0f} s, {left:.0f} s left")

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._line.end()


JOB = "all_assets"
FILTERED = "filtered_parquet"
_NAMED = 5  # shards in a line
_FEW = 2  # times the runs of what is due may be those of all: these may be needed, too


def run_graph(request: MakeRequest, is_dry: bool = False, log_level: str = "critical") -> int:
    """Make what is asked for: shards first, then, if it is named, the training set.

    Args and result as `_run_shards`.
    """
    others = replace(request, assets=tuple(asset for asset in request.assets if asset != TRAINING))
    makes_set = others.assets != request.assets
    code = 0 if makes_set and not others.assets else _run_shards(others, is_dry, log_level)
    if makes_set and code == 0 and is_dry:
        print(f"{TRAINING} would be made of the tars there are")
    return _make_training_set(log_level) if makes_set and code == 0 and not is_dry else code


def _make_training_set(log_level: str) -> int:
    """Make the training set from the tars there are, and print what came of it."""
    started = time.monotonic()
    with _instance() as instance, process_tag(instance) as process:
        for line in due_lines(instance, [TARS.asset]):
            print(warning_line(f"{TRAINING}: {line}"), file=sys.stderr)
        job = build_definitions().resolve_job_def(RESHARD)
        tags = {**process, STARTED_BY: "mm-assets run"}
        result = _execute(instance, job, tags, log_level=log_level)
        if was_interrupted(result):
            return interrupted()
        for line in failed_steps(result.all_events):
            fail(line)
        made = result.asset_materializations_for_node(TRAINING) if result.success else []
        checks = result.get_asset_check_evaluations()
    for materialization in made:
        told: dict[str, Any] = {name: value.value for name, value in materialization.metadata.items()}
        print(
            f"{TRAINING}: {counted(told['samples'], 'sample')} in {counted(told['shards'], 'shard')}, "
            f"{told['uses']} uses, {told['left_out']} left out; plan {told['plan']}"
        )
    for check in checks:
        print(
            f"{check.check_name}: {'passed' if check.passed else 'failed'}, digest {told['content_digest']}"
        )
    print(f"whole run: {time.monotonic() - started:.1f} s")
    return 0 if result.success and all(check.passed for check in checks) else 1


def _run_shards(request: MakeRequest, is_dry: bool = False, log_level: str = "critical") -> int:
    """Make what is asked for in runs of neighbouring shards, and print problems, a table and the proof.

    Args:
        is_dry: print what would be made, and why, and make nothing.
        log_level: least level of Dagster's events that are printed.

    Returns:
        The exit code: 0 if every shard landed, lost no more than ``MM_MAX_LOSS`` and is proven.
    """
    settings = Settings.load()
    resources = resources_from_environment()
    raw = resources["raw"]
    if not is_dry:
        refuse_unwritable(settings.storage)
        opened_hash_lists(settings.hash_lists, lists_folder(resources["maintained"].root))
    listing = raw.listing()
    for line in listing.warnings:
        print(warning_line(line), file=sys.stderr)
    with _instance() as instance:
        if not is_dry:
            instance.add_dynamic_partitions(str(SHARDS.name), list(listing))
        absent = [key for key in instance.get_dynamic_partitions(str(SHARDS.name)) if key not in listing]
        if not listing.unmatched:  # of an unreachable location nobody knows: its shards fail
            _warn_of_removed(absent)
            absent = []
        fail_lost_runs(instance)
        definitions = build_definitions(resources)
        specs = partitioned_specs(definitions)
        selection = select(request, instance, specs, listing, absent, explains=is_dry)
        if is_dry:
            if not request.kinds:
                assets = [asset for group in selection.groups for asset in group]
                selection = selection.with_reasons(
                    altered_shards(instance, definitions, resources, assets, selection.keys)
                )
            known_keys = instance.get_dynamic_partitions(str(SHARDS.name))
            return _print_plan(selection, listing, list(dict.fromkeys([*known_keys, *listing])))
        if not selection.keys:
            print("nothing to do")
            return 0
        runs = _Runs(instance, definitions, resources, request, listing, selection, settings, log_level)
        return runs.make()


class _Runs:
    """What is asked for, made in runs of neighbouring shards, one after the other.

    Args:
        selection: what ``request`` asks for, of the raw shards in ``listing``.
        log_level: as in `_run_shards`.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        definitions: dg.Definitions,
        resources: Mapping[str, Any],
        request: MakeRequest,
        listing: Listing,
        selection: Selection,
        settings: Settings,
        log_level: str,
    ) -> None:
        self._instance, self._definitions, self._resources = instance, definitions, resources
        self._request, self._listing, self._selection = request, listing, selection
        self._settings, self._log_level = settings, log_level
        self._is_whole = request == MakeRequest() and not listing.unmatched
        self._root, self._filters = resources["maintained"].root, resources["bounds"].active()
        self._started = time.monotonic()
        self._begin_summary()

    def make(self) -> int:
        """Make it, and print problems, a table and the proof; return the exit code."""
        few = self._selection.of_shards(())
        # With a limit of age, the events of a run say that all is well.
        if self._is_whole and self._settings.fresh_within is None:
            needs_scores = self._is_first_pass_due()
            found = self._look(needs_scores)
            if found.records is not None and (made := self._as_allowed(found.records)):
                of_all = counted(len(self._listing), "shard")
                print(f"nothing to do: {of_all} up to date, as published and proven")
                return self._printed(made)
            few = few if needs_scores else self._selection.of_shards(found.due)
        assets = ", ".join(self._request.assets) or "all assets"
        locations = self._resources["raw"].locations
        print(f"materializing {assets} for the raw shards in {locations} ...", flush=True)
        code = self._make_few(few)
        code = self._make_first_pass() if code is None else code
        return self._make_selection() if code is None else code

    def _make_few(self, few: Selection) -> int | None:
        """Make the shards that are known to be due, if these are few, and look at the others.

        Returns:
            The exit code, if that ends it.
        """
        order = list(self._instance.get_dynamic_partitions(str(SHARDS.name)))
        if not 0 < _FEW * len(few.runs(order)) <= len(self._selection.runs(order)):
            return None
        print(f"first what is due: {counted(len(few.keys), 'shard')}; then a look at the others", flush=True)
        if self._carry_out(few) == INTERRUPTED:
            return INTERRUPTED
        standing = self._look(tells_of_new=True).records if self._summary.has_succeeded else None
        if standing is not None and self._as_allowed(standing):
            made = frozenset(few.keys)
            self._summary.add_unchanged(
                {
                    asset: {key: record for key, record in records.items() if key not in made}
                    for asset, records in standing.items()
                }
            )
            self._selection = self._selection.of_shards(())
        else:
            self._begin_summary()  # a run of all tells of each shard once
        return None

    def _make_first_pass(self) -> int | None:
        """Make the scores of all shards, and judge the whole set by them, if filters need that.

        Returns:
            The exit code, if that ends it.
        """
        if FILTERED not in self._selection.keys_by_asset or not self._is_first_pass_due():
            return None
        needed = [name for judge in self._filters for name in judge.statistics()]
        needed += [judge.name for judge in duplicate_filters(self._filters)]
        print(f"first pass: scores of all shards, for {', '.join(sorted(set(needed)))}", flush=True)
        if self._carry_out(self._selection.only(SCORED)) == INTERRUPTED:
            return INTERRUPTED
        if self._summary.failed_steps:  # a setting is at fault, or the storage: all would fail again
            return self._printed(self._summary)
        stale = self._judge_whole_set(self._selection.keys_by_asset[FILTERED])
        others = tuple(key for key in self._listing if key in stale)
        if self._summary.has_succeeded:
            self._selection = self._selection.without(SCORED)
        else:  # a run of all assets tells each fault once
            self._begin_summary()
        if others and STALE in self._request.kinds and self._request.limit is None:
            specs = partitioned_specs(self._definitions)
            more = select(replace(self._request, shards=others), self._instance, specs, self._listing)
            self._selection = self._selection.with_more(more)
            self._summary.expect(more.keys_by_asset)
        elif others:
            named = f"{counted(len(others), 'other shard')} with other verdicts"
            print(f"`mm-assets run --changed` makes {named} anew", flush=True)
        self._definitions = build_definitions()  # their filters have the statistics
        return None

    def _make_selection(self) -> int:
        code = self._carry_out(self._selection) or self._printed(self._summary)
        if code != INTERRUPTED:
            report_inventory(self._instance, self._definitions.resolve_asset_graph(), self._listing)
        if code == 0 and self._selection.keys:  # else the look has noted it
            note_run(self._instance, self._definitions, self._resources, self._listing, self._is_whole)
        return code

    def _look(self, needs_scores: bool = False, tells_of_new: bool = False) -> Look:
        return look_at_all(
            self._instance, self._definitions, self._resources, self._listing, needs_scores, tells_of_new
        )

    def _begin_summary(self) -> None:
        self._summary = RunSummary(self._selection.keys_by_asset, self._settings.max_loss)

    def _is_first_pass_due(self) -> bool:
        """Return whether scores come first; statistics that there are judge a few shards, verdicts do not."""
        if duplicate_filters(self._filters):
            return True
        wanted = any(judge.statistics() for judge in self._filters)
        return wanted and (self._is_whole or bool(missing_statistics(self._root, self._filters)))

    def _judge_whole_set(self, keys: Collection[str]) -> set[str]:
        """Compute statistics and find duplicates, as far as filters need them, and print lines about them.

        Args:
            keys: shards that are to be filtered.

        Returns:
            Other shards whose verdicts have changed.
        """
        root, filters = self._root, self._filters
        lines: list[str] = []
        stale: set[str] = set()
        if self._is_whole or missing_statistics(root, filters):
            with shard_progress() as progress:
                lines += compute_statistics(root, filters, progress).lines()
        if self._is_whole or not has_verdicts(root, filters, keys):
            with shard_progress() as progress:
                found = find_duplicates(root, filters, progress)
            if found.found:
                self._instance.report_runless_asset_event(duplicates_event(found))
            lines += found.lines()
            stale = set(found.changed).difference(keys)
        for line in lines:
            print(line, flush=True)
        return stale

    def _carry_out(self, selection: Selection) -> int:
        """Launch the runs of a selection, one after the other; return `INTERRUPTED` or 0."""
        instance, job = self._instance, self._definitions.resolve_job_def(JOB)
        runs = selection.runs(list(instance.get_dynamic_partitions(str(SHARDS.name))))
        total = sum(len(group) * len(keys) for group, keys in runs)
        with RunProgress(total) as progress, process_tag(instance) as process:
            for number, (group, keys) in enumerate(runs, start=1):
                try:
                    tags = {**_range(keys), **process, STARTED_BY: "mm-assets run"}
                    run_id = str(uuid4())
                    progress.follow(instance, run_id, len(keys))
                    result = _execute(instance, job, tags, group, run_id, self._log_level)
                except dg.DagsterExecutionInterruptedError:
                    return interrupted()
                if was_interrupted(result):
                    return interrupted()
                self._summary.add(instance, result)
                if len(runs) > 1:
                    progress.print(
                        f"run {number} of {len(runs)}: {counted(len(keys), 'shard')}, {keys[0]}"
                        + (f" to {keys[-1]}" if keys[1:] else "")
                    )
        return 0

    def _as_allowed(self, records: Records) -> RunSummary | None:
        """Return the summary of shards that need no run; None if one has lost more than is allowed now."""
        summary = RunSummary(records, self._settings.max_loss)
        summary.add_unchanged(records)
        return None if summary.lossy else summary

    def _printed(self, summary: RunSummary) -> int:
        """Print what came of all runs, and return the exit code."""
        summary.add_standing(self._instance)
        summary.print(self._resources["raw"].locations)
        print(f"whole run: {time.monotonic() - self._started:.1f} s")
        return 0 if summary.has_succeeded and summary.is_proven and not summary.lossy else 1


def prove(shards: Sequence[str] = ()) -> int:
    """Read every output again, and print what is not as it was written.

    Args:
        shards: partitions to prove; none: all, and files that no shard has written.

    Raises:
        FileNotFoundError: there is no storage, which may be a misspelt one.
    """
    storage = Settings.load().storage
    with readable_store_errors():
        if not exists(storage):
            raise FileNotFoundError(f"{storage}: no such storage, so there is nothing to prove (MM_STORAGE)")
    with _instance() as instance:
        order = list(instance.get_dynamic_partitions(str(SHARDS.name)))
        keys = [known(key, order, "partition") for key in dict.fromkeys(shards)] or order
        if not keys:
            print("nothing to prove: no shard was ever made")
            return 0
        made = {asset: instance.get_materialized_partitions(dg.AssetKey([asset])) for asset in BY_ASSET}
        summary = RunSummary({asset: [key for key in keys if key in found] for asset, found in made.items()})
        never = [key for key in keys if not any(key in found for found in made.values())]
        if never:
            print(f"never made, nothing to prove: {_some_of(never)}")
        fail_lost_runs(instance)
        job = build_definitions().resolve_job_def("prove")
        with process_tag(instance) as process:
            for tags in [_range(chunk) for chunk in chunks(shards, order)] if shards else [{}]:
                tags = {**tags, **process, STARTED_BY: "mm-assets prove"}
                result = _execute(instance, job, tags)
                if was_interrupted(result):
                    return interrupted()
                summary.add(instance, result)
        summary.print_proof()
        return 0 if summary.has_succeeded and summary.is_proven else 1


def find_status() -> tuple[Status, Outlook]:
    """Return what is made of all raw shards, and what automation will do next."""
    settings, resources = Settings.load(), resources_from_environment()
    home = home_in_force()
    os.environ["DAGSTER_HOME"] = str(home)
    definitions = build_definitions(resources)
    gc.disable()  # a collection would go through all that Dagster has imported, again and again
    try:
        with open_instance(home, changes_nothing=True) as instance:
            graph, root = definitions.resolve_asset_graph(), resources["maintained"].root
            found = StatusFinder(instance, graph, root, resources["raw"])
            return found.status(), found.outlook(schedules(settings), settings.automation)
    finally:
        gc.enable()


def due_shards(instance: dg.DagsterInstance, assets: Collection[str]) -> set[str]:
    """Return the shards that were made before and are due in some assets: failed, or of other settings."""
    resources = resources_from_environment()
    graph, root = build_definitions(resources).resolve_asset_graph(), resources["maintained"].root
    by_asset = StatusFinder(instance, graph, root, resources["raw"]).due().by_asset
    return {
        key
        for asset, found in by_asset.items()
        if asset.to_user_string() in assets
        for key, why in found.items()
        if why.kind != MISSING
    }


def due_lines(instance: dg.DagsterInstance, assets: Collection[str]) -> list[str]:
    """Return a line for who uses outputs as they are, where shards in them are due that were made before."""
    due = due_shards(instance, assets)
    shards = counted(len(due), "shard is", "shards are")
    how = "mm-assets run --failed --changed makes what is due"
    return [f"{shards} due, and taken as last made: {how}"] if due else []


def _execute(
    instance: dg.DagsterInstance,
    job: dg.JobDefinition,
    tags: dict[str, str],
    assets: Sequence[dg.AssetKey] | None = None,
    run_id: str | None = None,
    log_level: str = "critical",
) -> dg.ExecuteInProcessResult:
    return job.execute_in_process(
        instance=instance,
        run_id=run_id,
        tags=tags,
        asset_selection=assets,
        raise_on_error=False,
        run_config={"loggers": {"console": {"config": {"log_level": log_level.upper()}}}},
    )


def _range(keys: Sequence[str]) -> dict[str, str]:
    return {
        "dagster/asset_partition_range_start": keys[0],
        "dagster/asset_partition_range_end": keys[-1],
    }


def _instance() -> AbstractContextManager[dg.DagsterInstance]:
    return open_instance(prepare_home())


def _warn_of_removed(keys: Sequence[str]) -> None:
    if keys:
        gone = counted(len(keys), "raw shard is gone", "raw shards are gone")
        line = f"{gone}, or not in MM_RAW_SHARDS any more; the outputs stay: {_some_of(keys)}"
        line += " (mm-assets retire removes them)"
        print(warning_line(line), file=sys.stderr)


def _some_of(keys: Sequence[str]) -> str:
    return f"{', '.join(keys[:_NAMED])}{' …' if keys[_NAMED:] else ''}"


def _print_plan(selection: Selection, listing: Listing, order: Sequence[str]) -> int:
    for line in selection.lines():
        print(line)
    due = {key for found in selection.why.values() for key in found}
    chosen = selection.keys
    unchanged = sum(key not in due for key in chosen)
    runs = f" in {counted(len(selection.runs(order)), 'run')}" if chosen else ""
    parts = [f"{len(chosen)} of {counted(len({*listing, *chosen}), 'shard')} would be taken{runs}"]
    if unchanged:
        parts.append(f"{unchanged} of them are up to date, and would be left as they are")
    if selection.skipped:
        parts.append(f"{selection.skipped} more are beyond the limit")
    print("; ".join(parts))
    return 0
