"""Backfills that are launched without a click; what is made, and what automation will do next.

* `DueBackfills` is the one way in which sensor and schedule have shards made.
* `StatusFinder` finds the `Status` of all shards, for the command ``status`` and the report, and the
  `Outlook`. It changes nothing, asks the database a few questions an asset, and reads one file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.errors import DagsterDefinitionChangedDeserializationError
from dagster._core.execution.backfill import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)
from dagster._core.scheduler.instigation import InstigatorStatus, InstigatorType
from dagster._utils.schedules import schedule_execution_time_iterator

from mm_assets.accounting import BY_ASSET, CURATED
from mm_assets.accounting.erasures import ErasureStore
from mm_assets.accounting.proof import ProofStore
from mm_assets.automation import (
    FAILED,
    MISSING,
    STALE,
    Due,
    DueShards,
    due_shards,
    first_attempts,
    latest_times,
    latest_versions,
    versions_of_partitions,
)
from mm_assets.automation.whole_set import SCORED, PendingVerdicts
from mm_assets.formats.raw_shards import Listing, unchanged_shards
from mm_assets.graph.assets import FILTERED_PARQUET
from mm_assets.graph.dagster_internals import (
    SHARDS,
    WORKING,
    attempts_without_result,
    keys_of_run,
    unfinished_runs,
)
from mm_assets.graph.instance_queries import (
    STARTED_BY,
    evaluation_before,
    fail_lost_runs,
    failing_by_run,
    last_evaluations,
    launch_backfill,
    logged_at,
    lost_runs,
    reasons,
)
from mm_assets.graph.io_manager import LANDED
from mm_assets.graph.proof import proof_keys
from mm_assets.graph.raw import RAW_SHARDS, RawShards
from mm_assets.graph.resources import training_recipe
from mm_assets.model.errors import counted
from mm_assets.settings import Settings
from mm_assets.storage.errors import error_line, readable_store_errors
from mm_assets.training_set.proof import training_state
from mm_assets.view.overview import (
    AssetStatus,
    LastProof,
    OldestFailure,
    Quarantined,
    Status,
    short_time,
)

_SCORED = [dg.AssetKey(name) for name in SCORED]


def unfinished_backfills(instance: dg.DagsterInstance) -> Sequence[PartitionBackfill]:
    """Return the backfills that have been launched and have not ended, whoever launched them."""
    statuses = [status for status in BulkActionStatus if status not in BULK_ACTION_TERMINAL_STATUSES]
    return instance.get_backfills(filters=BulkActionsFilter(statuses=statuses))


def unfinished_partitions(
    instance: dg.DagsterInstance, asset_graph: AssetGraph
) -> Mapping[dg.AssetKey, set[str]]:
    """Return what unfinished backfills target, whoever launched them, by asset."""
    found: dict[dg.AssetKey, set[str]] = {}
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        for backfill in unfinished_backfills(instance):
            if not backfill.is_asset_backfill:
                continue
            try:
                target = backfill.get_asset_backfill_data(asset_graph).target_subset
            except DagsterDefinitionChangedDeserializationError:
                continue  # of partitions that are no longer what they were
            for asset, subset in target.partitions_subsets_by_asset_key.items():
                found.setdefault(asset, set()).update(subset.get_partition_keys())
    return found


_NAMED = 3  # reasons in a title
_LATEST_RUNS = 100  # more are not created while somebody looks for due shards


@dataclass(frozen=True)
class DueBackfills:
    """What is due of the raw shards that have a partition, without what is in progress.

    Args:
        versions: of all raw shards that have a partition.
        latest_run: storage id of the latest run when the search began.
        verdicts: those on duplicates that shards are filtered with; None: without any.
        is_scoring: whether a run or a backfill is about to make scores.
    """

    due: DueShards
    versions: Mapping[str, str]
    asset_graph: AssetGraph
    latest_run: int = 0
    verdicts: PendingVerdicts | None = None
    is_scoring: bool = False

    @classmethod
    def find(cls, instance: dg.DagsterInstance, asset_graph: AssetGraph, listing: Listing) -> DueBackfills:
        """Return what is due now; partitions that a run or a backfill is about to make are not."""
        fail_lost_runs(instance)  # their shards would be in progress for ever
        latest_run = max((record.storage_id for record in instance.get_run_records(limit=1)), default=0)
        versions = versions_of_partitions(instance, listing)
        # Backfills first: one that ends in between has then made what was due.
        unfinished = unfinished_partitions(instance, asset_graph)
        found = due_shards(instance, asset_graph, versions)
        free = _without_busy(found, unfinished, versions)
        is_scoring = any(found.in_progress.get(asset) or unfinished.get(asset) for asset in _SCORED)
        verdicts = PendingVerdicts.of_graph(instance, asset_graph)
        return cls(free, versions, asset_graph, latest_run, verdicts, is_scoring)

    def request(self, chosen: DueShards, started_by: str) -> dg.RunRequest | None:
        """Return the request for the verdicts that shards wait for which have their scores, if it is time."""
        if self.verdicts is None:
            return None
        is_scoring = self.is_scoring or any(chosen.by_asset.get(asset) for asset in _SCORED)
        return self.verdicts.request(self.awaiting(chosen), is_scoring, {STARTED_BY: started_by})

    def awaiting(self, chosen: DueShards) -> list[str]:
        """Return the shards that wait for nothing but verdicts."""
        without = self._without_verdicts(chosen)
        return [key for key in without if not any(key in self.due.by_asset.get(of, ()) for of in _SCORED)]

    def _without_verdicts(self, chosen: DueShards) -> list[str]:
        """Return the shards that cannot be filtered: without verdicts, or soon with other scores."""
        if self.verdicts is None:
            return []
        return [
            key
            for key in chosen.by_asset.get(FILTERED_PARQUET, ())
            if any(key in self.due.by_asset.get(of, ()) for of in _SCORED) or self.verdicts.lacks(key)
        ]

    def launch(self, instance: dg.DagsterInstance, chosen: DueShards, started_by: str) -> list[str]:
        """Launch a backfill for each set of assets that is due in some shards; return a line for each.

        Shards that somebody else has taken since the search are left out; those without verdicts are not
        filtered.
        """
        chosen = _held_back(chosen, FILTERED_PARQUET, set(self._without_verdicts(chosen)))
        if chosen.partitions():
            chosen = chosen.restricted(set(chosen.partitions()) - self._taken_since(instance))
        lines = []
        for assets, keys in chosen.by_assets().items():
            why = f"{counted(len(keys), 'shard')}: {_reasons(chosen, keys)}"
            backfill = launch_backfill(instance, self.asset_graph, assets, keys, why, started_by)
            lines.append(f"backfill {backfill} of {why}")
        return lines

    def _taken_since(self, instance: dg.DagsterInstance) -> set[str]:
        """Return the partitions of runs that were created since the search, and of unfinished backfills."""
        records = instance.get_run_records(limit=_LATEST_RUNS)
        runs = [record.dagster_run for record in records if record.storage_id > self.latest_run]
        taken = {key for run in runs for key in keys_of_run(run, SHARDS, instance)}
        return taken.union(*unfinished_partitions(instance, self.asset_graph).values())


def _held_back(due: DueShards, asset: dg.AssetKey, keys: Collection[str]) -> DueShards:
    """Return what is due but for some partitions of an asset, and of what is made from it."""
    if not keys:
        return due
    held, kept = {asset}, {}
    for each, found in due.by_asset.items():
        if each == asset or not held.isdisjoint(due.parents[each]):
            held.add(each)
            found = {key: why for key, why in found.items() if key not in keys}
        kept[each] = found
    return DueShards(kept, due.in_progress, due.parents)


def _without_busy(
    found: DueShards, unfinished: Mapping[dg.AssetKey, Collection[str]], keys: Iterable[str]
) -> DueShards:
    """Return what is due of these partitions, without those that a run or a backfill is about to make."""
    by_asset = (found.in_progress, unfinished)
    busy = {key for busy_in in by_asset for of_asset in busy_in.values() for key in of_asset}
    return found.restricted(set(keys) - busy)


# Dagster stores the cursor with each tick, so it has a short digest of each shard that waits. That another
# one has the same, and a shard is taken half uploaded for that, happens once in 10^9 times if 100,000 wait.
_CURSOR = "digests:"
_DIGEST_BYTES = 6


def digest_of(key: str, version: str) -> bytes:
    text = f"{key}\0{version}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()


def cursor_of(digests: Iterable[bytes]) -> str:
    return _CURSOR + base64.b64encode(b"".join(digests)).decode()


def digests_in(cursor: str | None) -> set[bytes]:
    """Return the digests of a cursor; none of one that another release has written."""
    if not cursor or not cursor.startswith(_CURSOR):
        return set()
    digests = base64.b64decode(cursor.removeprefix(_CURSOR))
    return {digests[start : start + _DIGEST_BYTES] for start in range(0, len(digests), _DIGEST_BYTES)}


LOOK_AGAIN_SECONDS = 30
STARTED_BY_REFRESH = "schedule refresh"
# What a run of `refresh` has found, in the key-value store of the instance: when, and a cursor of digests.
_FOUND = "mm_assets/refresh"


def note_found(instance: dg.DagsterInstance, found: DueBackfills) -> None:
    """Note what is due, for `launch_found`."""
    cursor = cursor_of(digest_of(key, found.versions[key]) for key in found.due.partitions())
    instance.run_storage.set_cursor_values({_FOUND: json.dumps([time.time(), cursor, False])})


def launch_found(
    instance: dg.DagsterInstance, graph: AssetGraph, listing: Listing
) -> tuple[list[str], list[dg.RunRequest]]:
    """Launch backfills of what the job `refresh` has found, where it is still due and the same.

    What has to wait for verdicts on duplicates is not forgotten before these are asked for; the job that
    finds them launches it.

    Returns:
        A line for each backfill; one, if nothing is left to launch; none, if nothing was found, or just now.
        And requests of runs.
    """
    text = instance.run_storage.get_cursor_values({_FOUND}).get(_FOUND)
    if not text:
        return [], []
    moment, cursor, *was_launched = json.loads(text)
    if 0 <= time.time() - moment < LOOK_AGAIN_SECONDS:  # what is being uploaded is another at the next look
        return [], []
    before = digests_in(cursor)
    found = DueBackfills.find(instance, graph, listing)
    same = {key for key in found.due.partitions() if digest_of(key, found.versions[key]) in before}
    chosen, lines = found.due.restricted(same), []
    if any(was_launched):  # what has failed since is not tried again
        chosen = chosen.restricted(set(found.awaiting(chosen)))
    else:
        lines = found.launch(instance, chosen, STARTED_BY_REFRESH)
    request = found.request(chosen, STARTED_BY_REFRESH)
    is_scoring = found.is_scoring or any(chosen.by_asset.get(asset) for asset in _SCORED)
    waits = found.verdicts is not None and request is None and (is_scoring or found.awaiting(chosen))
    if instance.run_storage.get_cursor_values({_FOUND}).get(_FOUND) == text:  # else there is a newer find
        note = json.dumps([time.time(), cursor, True]) if waits else ""
        instance.run_storage.set_cursor_values({_FOUND: note})
    if waits:
        lines = [*lines, "refresh: shards wait until duplicates are looked for in them"]
    return lines or ["refresh: what was due is being made, or has changed"], [request] if request else []


def _reasons(chosen: DueShards, keys: Sequence[str]) -> str:
    """Return the reasons for these shards in the first asset that each is due in."""
    counts: dict[str, int] = {}
    seen: set[str] = set()
    wanted = set(keys)
    for due in chosen.by_asset.values():
        for key, why in due.items():
            if key in wanted and key not in seen:
                seen.add(key)
                reason = "failed before" if why.kind == FAILED else why.reason
                counts[reason] = counts.get(reason, 0) + 1
    most = sorted(counts.items(), key=lambda found: -found[1])[:_NAMED]
    return ", ".join(reason if len(counts) == 1 else f"{count} {reason}" for reason, count in most)


# After so many seconds without a sign of life no daemon is there; it gives one every half minute.
_DAEMON_SECONDS = 90


@dataclass(frozen=True)
class Outlook:
    """What automation will do next; times as in `Status`.

    Args:
        due_shards: those that ``refresh`` would have made now, in one asset or more.
        ticks: the next one of each schedule; None of one that is stopped.
        automation: mode of the sensor of this name (``MM_AUTOMATION``).
        daemon: whether one is there to do it.
    """

    due_shards: int
    ticks: Mapping[str, str | None]
    automation: str
    daemon: bool
    queued_runs: int
    working_runs: int
    backfills: int

    def sentences(self) -> dict[str, str]:
        """Return it in words, by name."""
        ticks = (
            f"{name} {'is stopped' if at is None else f'at {short_time(at)}'}"
            for name, at in self.ticks.items()
        )
        return {
            "due": f"{counted(self.due_shards, 'shard')}; MM_AUTOMATION={self.automation} here",
            "schedules": ", ".join(ticks) + ("" if self.daemon else " (no daemon is running)"),
            "runs": f"{self.working_runs} working, {self.queued_runs} queued; "
            f"{counted(self.backfills, 'unfinished backfill')}",
        }


class StatusFinder:
    """Finder of what is made of all shards now, and of what comes next; it changes nothing.

    Args:
        root: storage root.
        raw: lists the raw shards. Where it cannot, those count that have a partition, as last observed.
    """

    def __init__(
        self, instance: dg.DagsterInstance, asset_graph: AssetGraph, root: str, raw: RawShards
    ) -> None:
        self._instance = instance
        self._graph = asset_graph
        self._root = root
        self._warnings: list[str] = []
        known = instance.get_dynamic_partitions(str(SHARDS.name))
        self._versions, self._gone = self._raw_versions(raw, known)
        self._lost = {run.run_id for run in lost_runs(instance)}
        self._unfinished = unfinished_partitions(instance, asset_graph)
        self._found = due_shards(instance, asset_graph, self._versions, changes_nothing=True, lost=self._lost)

    def _raw_versions(self, raw: RawShards, known: Sequence[str]) -> tuple[dict[str, str], int]:
        """Return the versions of the raw shards, and how many are gone of those that have a partition.

        A local file that has not changed since its version was noted is not read.
        """
        noted = latest_versions(self._instance, RAW_SHARDS, dg.DagsterEventType.ASSET_OBSERVATION)
        try:
            listing = raw.listing()
        except (OSError, ValueError) as error:
            self._warnings.append(f"{error_line(error)}; raw shards are those that were known before")
            return {key: noted.get(key, "") for key in known}, 0
        self._warnings += listing.warnings
        times = latest_times(self._instance, RAW_SHARDS, dg.DagsterEventType.ASSET_OBSERVATION)
        unchanged = unchanged_shards(listing, times).intersection(noted)
        versions = {key: noted[key] if key in unchanged else shard.version for key, shard in listing.items()}
        return versions, sum(key not in listing for key in known)

    def status(self) -> Status:
        """Return what is made of each raw shard."""
        proofs = self._proofs()
        return Status(
            raw_shards=len(self._versions),
            gone=self._gone,
            assets={asset.to_user_string(): self._counts(asset, proofs) for asset in self._found.by_asset},
            quarantine=_quarantined((proofs or {}).get(CURATED.asset)),
            oldest_failure=self._oldest_failure(),
            last_proof=self._last_proof(),
            training_set=self._training_set(),
            failing_checks=self._failing_checks(),
            unfinished_erasures=self._unfinished_erasures(),
            warnings=tuple(self._warnings),
        )

    def _proofs(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the sums over the last proof of each shard, by asset; None if they cannot be read."""
        try:
            with readable_store_errors():
                found: Mapping[str, Mapping[str, Any]] = ProofStore(self._root).summary().get("assets", {})
                return found
        except (OSError, ValueError) as error:
            self._warnings.append(f"{error_line(error)}; what is proven, and in quarantine, is not known")
            return None

    def _training_set(self) -> str:
        """Return `training_state`, by the settings."""
        try:
            with readable_store_errors():
                return training_state(self._root, training_recipe(Settings.load(), self._root).recipe())
        except (OSError, ValueError) as error:
            self._warnings.append(f"{error_line(error)}; the training set cannot be looked at")
            return "not known"

    def _unfinished_erasures(self) -> tuple[str, ...]:
        try:
            with readable_store_errors():
                return tuple(erasure.id for erasure in ErasureStore(self._root).unfinished())
        except (OSError, ValueError) as error:
            self._warnings.append(f"{error_line(error)}; unfinished erasures are not known")
            return ()

    def _failing_checks(self) -> Mapping[str, int]:
        """Return how many shards fail each check, without those that are retired.

        `landed` is in the counts of the assets.
        """
        keys = sorted(key for key in self._graph.asset_check_keys if key.name != LANDED)
        last = {key: evaluation_before(self._instance, key, ()) for key in keys}
        found: dict[str, int] = {}
        for key, evaluation in ((key, run[1]) for key, run in last.items() if run is not None):
            if evaluation.passed or "failed" not in evaluation.metadata:
                continue
            failing = sum(each.shards for each in failing_by_run(self._instance, key, SHARDS.name))
            if failing or "problems" in evaluation.metadata:
                found[f"{key.asset_key.to_user_string()}.{key.name}"] = failing
        return found

    def _counts(self, asset: dg.AssetKey, proofs: Mapping[str, Mapping[str, Any]] | None) -> AssetStatus:
        kinds = Counter(why.kind for why in self._found.by_asset[asset].values())
        running = sum(key in self._versions for key in self._found.in_progress.get(asset, ()))
        proven, name = None, asset.to_user_string()
        if proofs is not None and name in BY_ASSET:
            proof = proofs.get(name)
            proven = 0 if proof is None else proof["shards"] - len(proof["problems"])
        return AssetStatus(
            made=len(self._versions) - kinds.total() - running,
            failed=kinds[FAILED],
            stale=kinds[STALE],
            missing=kinds[MISSING],
            running=running,
            proven=proven,
        )

    def _oldest_failure(self) -> OldestFailure | None:
        failed: dict[str, tuple[dg.AssetKey, Due]] = {}  # in their first assets: the others follow
        for asset, due in self._found.by_asset.items():
            for key, why in due.items():
                if why.kind == FAILED:
                    failed.setdefault(key, (asset, why))
        since = {
            asset: first_attempts(self._instance, asset) for asset in {asset for asset, _ in failed.values()}
        }
        open_ = ((since[asset].get(key), key) for key, (asset, _) in failed.items())
        for first, shard in sorted((id_, key) for id_, key in open_ if id_ is not None):
            asset, why = failed[shard]
            run = attempts_without_result(self._instance, asset, [shard]).get(shard)
            if run is not None:  # it has not been made meanwhile
                told = reasons(self._instance, asset, {shard: run}).get(shard)
                at = logged_at(self._instance, first)
                return OldestFailure(shard, asset.to_user_string(), _text(at), run, told or why.reason)
        return None

    def _last_proof(self) -> LastProof | None:
        found = last_evaluations(self._instance, proof_keys())
        if found is None:
            return None
        run = self._instance.get_run_by_id(found.run_id)
        by = "a run" if run is None else run.tags.get(STARTED_BY, f"job {run.job_name}")
        counts = (found.checks, found.partitions, found.evaluations, found.failed)
        return LastProof(_text(found.at), found.run_id, by, *counts)

    def due(self) -> DueShards:
        """Return what is due of the raw shards, without those that something is about to make."""
        return _without_busy(self._found, self._unfinished, self._versions)

    def outlook(self, schedules: Iterable[dg.ScheduleDefinition], automation: str) -> Outlook:
        """Return what automation will do next.

        Args:
            schedules: those of the code location.
            automation: mode of the sensor.
        """
        runs = [run for run in unfinished_runs(self._instance) if run.run_id not in self._lost]
        working = sum(run.status in WORKING for run in runs)
        seen = [beat.timestamp for beat in self._instance.get_daemon_heartbeats().values()]
        return Outlook(
            due_shards=len(self.due().partitions()),
            ticks={schedule.name: next_tick(self._instance, schedule) for schedule in schedules},
            automation=automation,
            daemon=max(seen, default=0.0) > time.time() - _DAEMON_SECONDS,
            queued_runs=len(runs) - working,
            working_runs=working,
            backfills=len(unfinished_backfills(self._instance)),
        )


def next_tick(instance: dg.DagsterInstance, schedule: dg.ScheduleDefinition) -> str | None:
    """Return when a schedule ticks next; None if it is stopped, by its setting or in the UI."""
    is_running = schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    for state in instance.all_instigator_state(instigator_type=InstigatorType.SCHEDULE):
        if state.instigator_name == schedule.name and state.status != InstigatorStatus.DECLARED_IN_CODE:
            is_running = state.is_running
    if not is_running:
        return None
    ticks = schedule_execution_time_iterator(
        time.time(), schedule.cron_schedule, schedule.execution_timezone or "UTC"
    )
    return _text(next(ticks))


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


def _quarantined(proof: Mapping[str, Any] | None) -> Quarantined | None:
    """Return what is in quarantine by proofs of curated rows, of which no filter has taken any."""
    if proof is None:
        return None
    return Quarantined(proof["lost_rows"], proof["rows"] + proof["lost_rows"], proof["shards"])
