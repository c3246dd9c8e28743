"""Finds the shards that are due, by what the event log says of each partition.

The command ``run``, the schedule ``refresh`` and the sensor ``automation`` all ask this module. It goes by
ids of events, and reads an event only where these leave it open:

* A partition whose latest planned materialization has no real one since has *failed*, once the run has ended.
* A partition was made from the latest version of an input if that version was there before the partition's
  run was created, or was made by the same run before it.
* Its code version is the present one if its run was created after that version was first seen
  (`SeenCodeVersions`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from mm_assets.automation.due_shards import FAILED, MISSING, STALE, Due, DueShards
from mm_assets.automation.partition_events import EventId, MadeFrom, latest_events, latest_versions, made_from
from mm_assets.formats.raw_shards import Listing
from mm_assets.io_managers import events
from mm_assets.io_managers.proof_resource import ZERO_LOSS
from mm_assets.io_managers.reports import SETTINGS_MARK
from mm_assets.io_managers.seen_code_versions import LIMIT_TAG, UNREAD, SeenCodeVersions
from mm_assets.partitions import SHARDS

_OTHER_CODE = "code or settings have changed"
_OTHER_RAW = "the raw shard has changed"

_MAX_UNPROVEN = 10_000  # failed proofs to look at
# A run that was lost is not tried again at once: what ended it may go on.
_RETRY_SECONDS = 600

_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION
_PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
_OBSERVED = dg.DagsterEventType.ASSET_OBSERVATION


@dataclass
class _Sorted:
    """Partitions of an asset by what ids of events say of them.

    ``unread`` have a materialization that must be read: the ids leave it open what it was made from, or by.
    """

    due: dict[str, Due] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)


class DueShardFinder:
    """Finds the due shards of an instance, as its event log is now: use a new one for another look.

    Args:
        specs: the materializable assets, and the observed ones that they are made from.
        raw_versions: all raw shards that exist, with their versions. No other partition is due.
    """

    def __init__(
        self, instance: dg.DagsterInstance, specs: Sequence[dg.AssetSpec], raw_versions: Mapping[str, str]
    ) -> None:
        self._instance = instance
        self._raw_versions = raw_versions
        by_key = {spec.key: spec for spec in specs}
        inputs = {key: sorted(dep.asset_key for dep in by_key[key].deps) for key in sorted(by_key)}
        self._order = list(TopologicalSorter(inputs).static_order())
        # What is not read makes nobody stale.
        self._parents = {
            key: [each for each in found if each.to_user_string() not in by_key[key].metadata.get(UNREAD, ())]
            for key, found in inputs.items()
        }
        self._code_versions = {key: spec.code_version for key, spec in by_key.items()}
        self._limits = {key: spec.tags.get(LIMIT_TAG) for key, spec in by_key.items()}
        self._seen = SeenCodeVersions(instance)
        self._latest: dict[dg.AssetKey, Mapping[str, EventId]] = {}
        self._versions: dict[dg.AssetKey, Mapping[str, str]] = {}
        self._observations: dict[dg.AssetKey, Mapping[str, EventId]] = {}
        self._ended: dict[str, bool] = {}

    def find(self, assets: Collection[dg.AssetKey] | None = None) -> DueShards:
        """Return what is due of these assets, or of all.

        A partition that is made from a due one is due itself, if that asset is among them, too.
        """
        result = DueShards(parents=self._parents)
        for asset in self._order:
            is_raw = not self._parents[asset]
            # Plans first: what lands in between is newer than its plan.
            planned = {} if is_raw else latest_events(self._instance, asset, _PLANNED)
            self._latest[asset] = latest_events(self._instance, asset, _OBSERVED if is_raw else _MATERIALIZED)
            if is_raw or (assets is not None and asset not in assets):
                continue
            due, running = self._find_in(asset, planned, result)
            # Partitions in the order of the listing, so that neighbours stay neighbours.
            result.by_asset[asset] = {key: due[key] for key in self._raw_versions if key in due}
            result.in_progress[asset] = running
        return result

    def latest_materialization(self) -> int:
        """Return the storage id of the latest materialization that was looked at."""
        made = (found for asset, found in self._latest.items() if self._parents[asset])
        return max((event.storage_id for found in made for event in found.values()), default=0)

    def _find_in(
        self, asset: dg.AssetKey, planned: Mapping[str, EventId], found: DueShards
    ) -> tuple[dict[str, Due], set[str]]:
        """Return what is due of an asset, and what a run is making; ``found`` has the assets before it."""
        seen = self._seen.see(asset, self._code_versions[asset])
        old = None if seen.is_confirmed else seen.since
        changes = [seen, *([self._seen.see_limit(asset, limit)] if (limit := self._limits[asset]) else [])]
        changed = max((change.since for change in changes if change.is_change), default=None)
        by_ids = self._by_ids(asset, planned, found, changed, old)
        made = self._latest[asset]
        read = made_from(
            self._instance, asset, [made[key].storage_id for key in by_ids.unread], self._parents[asset]
        )
        others = not all(self._is_current(asset, inputs.code_version) for inputs in read.values())
        if old is not None and not others and all(planned[key].storage_id > old for key in by_ids.running):
            self._seen.confirm(asset, seen)
        due = by_ids.due
        for key, inputs in read.items():
            if key in self._raw_versions and key not in due and (why := self._why_stale(asset, key, inputs)):
                due[key] = Due(STALE, why)
        for key in events.failing_shards(self._instance, dg.AssetCheckKey(asset, ZERO_LOSS), _MAX_UNPROVEN):
            if key not in due and key not in by_ids.running:
                due[key] = Due(STALE, "not as it was written")
        return due, by_ids.running

    def _by_ids(
        self,
        asset: dg.AssetKey,
        planned: Mapping[str, EventId],
        found: DueShards,
        code_changed: int | None,
        old: int | None,
    ) -> _Sorted:
        """Sort partitions by ids of events.

        Args:
            code_changed: what was planned up to this id failed by another code version, or limit; None:
                nothing did.
            old: what was planned up to this id may have been made by another code version; None: nothing.
        """
        result = _Sorted()
        made = self._latest[asset]
        for key in [*self._raw_versions, *(key for key in made if key not in self._raw_versions)]:
            plan, done = planned.get(key), made.get(key)
            if plan is not None and (done is None or plan.storage_id > done.storage_id):
                if self._has_ended(plan.run_id):
                    result.due[key] = self._failed(asset, key, plan, found, code_changed)
                else:
                    result.running.add(key)
                continue
            if done is None:
                result.due[key] = Due(MISSING, "never made", parent=self._due_parent(asset, key, found))
                continue
            cause = self._changed_input(asset, key, found)
            if cause is not None:
                result.due[key] = cause
            # The latest plan is not that of the run that made it, if two runs made it at the same time.
            own = plan if plan is not None and plan.run_id == done.run_id else None
            may_be_old = old is not None and (own is None or own.storage_id <= old)
            is_current = own is not None and self._is_made_from_latest(asset, key, own, done)
            if may_be_old or not (is_current or cause or key not in self._raw_versions):
                result.unread.add(key)
        return result

    def _changed_input(self, asset: dg.AssetKey, key: str, found: DueShards) -> Due | None:
        """Return which input has changed, without a look at what the partition was made from."""
        parent = self._due_parent(asset, key, found)
        if parent is not None:
            return Due(STALE, f"{parent.to_user_string()} is due", parent=parent)
        is_from_raw = any(not self._parents[parent] for parent in self._parents[asset])
        return Due(STALE, _OTHER_RAW) if is_from_raw and key in self._changed_raw else None

    def _due_parent(self, asset: dg.AssetKey, key: str, found: DueShards) -> dg.AssetKey | None:
        due = (parent for parent in self._parents[asset] if key in found.by_asset.get(parent, {}))
        return next(due, None)

    @cached_property
    def _changed_raw(self) -> Collection[str]:
        """Raw shards that have changed since they were last observed."""
        return {
            key
            for asset in self._order
            if not self._parents[asset]
            for key, version in self._versions_of(asset).items()
            if self._raw_versions.get(key, version) != version
        }

    def _is_made_from_latest(self, asset: dg.AssetKey, key: str, plan: EventId, made: EventId) -> bool:
        for parent in self._parents[asset]:
            latest = self._latest[parent].get(key)
            if latest is None:
                return False
            is_own = latest.run_id == made.run_id and latest.storage_id < made.storage_id
            if latest.storage_id > plan.storage_id and not is_own:
                return False
        return True

    def _why_stale(self, asset: dg.AssetKey, key: str, inputs: MadeFrom) -> str | None:
        """Return why a partition is stale, by what its materialization was made from."""
        for parent in self._parents[asset]:
            is_raw = not self._parents[parent]
            version = self._raw_versions[key] if is_raw else self._versions_of(parent).get(key)
            if inputs.inputs.get(parent) != version:
                return _OTHER_RAW if is_raw else f"{parent.to_user_string()} has changed"
        return None if self._is_current(asset, inputs.code_version) else _OTHER_CODE

    def _is_current(self, asset: dg.AssetKey, code_version: str | None) -> bool:
        """Return whether a code version is the present one.

        One that names no settings is of an older release of this package, whose outputs are as good.
        """
        present = self._code_versions[asset]
        return code_version in (present, (present or "").partition(SETTINGS_MARK)[0])

    def _failed(
        self, asset: dg.AssetKey, key: str, plan: EventId, found: DueShards, code_changed: int | None
    ) -> Due:
        run = f"failed in run {plan.run_id[:8]}"
        if code_changed is not None and plan.storage_id <= code_changed:
            return Due(FAILED, f"{run}; {_OTHER_CODE} since", may_land=True)
        for parent in self._parents[asset]:
            above = found.by_asset.get(parent, {}).get(key)
            if above is not None and (above.kind != FAILED or above.may_land):
                return Due(FAILED, f"{run}; {parent.to_user_string()} is due", may_land=True)
            is_raw = not self._parents[parent]
            latest = self._latest[parent].get(key)
            is_newer = (
                latest is not None and latest.storage_id > plan.storage_id and latest.run_id != plan.run_id
            )
            if is_newer or (is_raw and key in self._changed_raw):
                cause = _OTHER_RAW if is_raw else f"{parent.to_user_string()} has been made"
                return Due(FAILED, f"{run}; {cause} since", may_land=True)
        return self._failed_alike(asset, key, plan, self._due_parent(asset, key, found))

    def _failed_alike(self, asset: dg.AssetKey, key: str, plan: EventId, parent: dg.AssetKey | None) -> Due:
        """Return why a partition failed of which nothing has changed since.

        It failed for its content, which an observation tells, or was lost with its run.
        """
        run = f"run {plan.run_id[:8]}"
        told = self._observations_of(asset).get(key)
        record = self._instance.get_run_record_by_id(plan.run_id)
        if (told is not None and told.run_id == plan.run_id) or record is None:
            return Due(FAILED, f"failed in {run}")
        is_missing = key not in self._latest[asset]
        if record.dagster_run.status == dg.DagsterRunStatus.CANCELED:
            return Due(FAILED, f"{run} was canceled", is_missing=is_missing)
        may_land = time.time() - (record.end_time or 0) > _RETRY_SECONDS
        return Due(FAILED, f"{run} ended before it was made", may_land, parent, is_missing)

    def _observations_of(self, asset: dg.AssetKey) -> Mapping[str, EventId]:
        """Return the latest observation by partition: a shard that fails for its content has one."""
        if asset not in self._observations:
            self._observations[asset] = latest_events(self._instance, asset, _OBSERVED)
        return self._observations[asset]

    def _versions_of(self, asset: dg.AssetKey) -> Mapping[str, str]:
        """Return the latest data version by partition."""
        if asset not in self._versions:
            kind = _MATERIALIZED if self._parents[asset] else _OBSERVED
            self._versions[asset] = latest_versions(self._instance, asset, kind)
        return self._versions[asset]

    def _has_ended(self, run_id: str) -> bool:
        if run_id not in self._ended:
            run = self._instance.get_run_by_id(run_id)
            self._ended[run_id] = run is None or run.is_finished
        return self._ended[run_id]


def versions_of_partitions(instance: dg.DagsterInstance, listing: Listing) -> dict[str, str]:
    """Return the versions of the raw shards that have a partition; of a gone one there is none."""
    known = instance.get_dynamic_partitions(str(SHARDS.name))
    return {key: listing[key].version for key in known if key in listing}


def due_shards(instance: dg.DagsterInstance, graph: AssetGraph, raw_versions: Mapping[str, str]) -> DueShards:
    """Return what is due in all assets of a code location; see `DueShardFinder`."""
    specs = [spec for made in graph.assets_defs for spec in made.specs if spec.partitions_def]
    return DueShardFinder(instance, specs, raw_versions).find()
