"""Shards that are due: partitions that are missing, failed or stale, with the reason of each.

The command ``run``, the schedule ``refresh`` and the sensor ``automation`` all ask this module. It goes by
ids of events, and reads an event only where these leave it open:

* A partition whose latest planned materialization has no real one since has *failed*, once the run has ended.
* A partition was made from the latest version of an input if that version was there before the partition's
  run was created, or was made by the same run.
* Its code version is the present one if its run was created after that version was first seen
  (`SeenCodeVersions`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from mm_assets.automation.partition_events import EventId, MadeFrom, latest_events, latest_versions, made_from
from mm_assets.io_managers import events
from mm_assets.io_managers.proof_resource import ZERO_LOSS
from mm_assets.io_managers.seen_code_versions import EVERYTHING, SeenCodeVersions, Since

MISSING, FAILED, STALE = "missing", "failed", "stale"
_OTHER_CODE = "code or settings have changed"

_MAX_UNPROVEN = 10_000  # failed proofs to look at

_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION
_PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
_OBSERVED = dg.DagsterEventType.ASSET_OBSERVATION


@dataclass(frozen=True)
class Due:
    """Why a partition should be made: ``kind`` is missing, failed or stale, ``reason`` a few words.

    ``is_mended``: it failed, and the raw shard, the code or a setting has changed since.
    """

    kind: str
    reason: str
    is_mended: bool = False


@dataclass
class DueShards:
    """Due partitions by asset, in the order of the graph, then by partition.

    ``in_progress`` are partitions that a run, which has not ended, is about to make.
    """

    by_asset: dict[dg.AssetKey, dict[str, Due]] = field(default_factory=dict)
    in_progress: dict[dg.AssetKey, set[str]] = field(default_factory=dict)

    def where(self, is_wanted: Callable[[Due], bool]) -> DueShards:
        """Return the partitions that are due for a wanted reason, and what is due further on of them."""
        kept: dict[dg.AssetKey, dict[str, Due]] = {}
        chosen: set[str] = set()
        for asset, due in self.by_asset.items():
            kept[asset] = {key: why for key, why in due.items() if is_wanted(why) or key in chosen}
            chosen.update(kept[asset])
        return DueShards(kept, self.in_progress)

    def restricted(self, keys: Collection[str]) -> DueShards:
        """Return what is due of these partitions."""
        return DueShards(
            {
                asset: {key: why for key, why in due.items() if key in keys}
                for asset, due in self.by_asset.items()
            },
            self.in_progress,
        )

    def partitions(self) -> list[str]:
        """Return the partitions that are due in any asset, each once."""
        return list(dict.fromkeys(key for due in self.by_asset.values() for key in due))

    def by_assets(self) -> dict[tuple[dg.AssetKey, ...], list[str]]:
        """Return the partitions by the assets that they are due in."""
        assets_of: dict[str, list[dg.AssetKey]] = defaultdict(list)
        for asset, due in self.by_asset.items():
            for key in due:
                assets_of[key].append(asset)
        grouped: dict[tuple[dg.AssetKey, ...], list[str]] = defaultdict(list)
        for key, assets in assets_of.items():
            grouped[tuple(assets)].append(key)
        return dict(grouped)


class DueShardFinder:
    """Finds the due shards of an instance.

    Args:
        specs: the materializable assets, and the observed ones that they are made from.
        raw_versions: the raw shards that exist, with their versions. No other partition is due.
    """

    def __init__(
        self, instance: dg.DagsterInstance, specs: Sequence[dg.AssetSpec], raw_versions: Mapping[str, str]
    ) -> None:
        self._instance = instance
        self._raw_versions = raw_versions
        by_key = {spec.key: spec for spec in specs}
        parents = {key: sorted(dep.asset_key for dep in by_key[key].deps) for key in sorted(by_key)}
        self._order = list(TopologicalSorter(parents).static_order())
        self._parents = parents
        self._code_versions = {key: spec.code_version for key, spec in by_key.items()}
        self._observed = [key for key in self._order if not parents[key]]
        self._seen = SeenCodeVersions(instance)
        self._ended: dict[str, bool] = {}

    def find(self, assets: Collection[dg.AssetKey] | None = None) -> DueShards:
        """Return what is due of these assets, or of all.

        A partition that is made from a due one is due itself, if that asset is among them, too.
        """
        latest = {key: latest_events(self._instance, key, _OBSERVED) for key in self._observed}
        versions = {key: latest_versions(self._instance, key, _OBSERVED) for key in self._observed}
        changed = {
            key for key, version in self._raw_versions.items()
            for found in versions.values() if found.get(key, version) != version
        }  # fmt: skip
        result = DueShards()
        for asset in self._order:
            if not self._parents[asset]:
                continue
            latest[asset] = latest_events(self._instance, asset, _MATERIALIZED)
            if assets is not None and asset not in assets:
                versions[asset] = latest_versions(self._instance, asset, _MATERIALIZED)
                continue
            since = self._seen.since(asset, self._code_versions[asset])
            due, running, open_ = self._by_ids(asset, latest, changed, result, since)
            versions[asset] = latest_versions(self._instance, asset, _MATERIALIZED)
            by_events = self._by_events(asset, open_, latest[asset], versions)
            due.update(by_events)
            if since.storage_id != EVERYTHING and not any(
                why.reason == _OTHER_CODE or why.is_mended for why in due.values()
            ):
                self._seen.confirm(asset, self._code_versions[asset])
            due.update(self._unproven(asset, running))
            # Partitions in the order of the listing, so that neighbours stay neighbours.
            result.by_asset[asset] = {key: due[key] for key in self._raw_versions if key in due}
            result.in_progress[asset] = running
        return result

    def _by_ids(
        self,
        asset: dg.AssetKey,
        latest: Mapping[dg.AssetKey, Mapping[str, EventId]],
        changed: Collection[str],
        found: DueShards,
        since: Since,
    ) -> tuple[dict[str, Due], set[str], set[str]]:
        """Return what is due by ids of events alone, what a run is making, and what these leave open."""
        planned = latest_events(self._instance, asset, _PLANNED)
        due: dict[str, Due] = {}
        running: set[str] = set()
        open_: set[str] = set()
        for key in self._raw_versions:
            plan, made = planned.get(key), latest[asset].get(key)
            if plan is not None and (made is None or plan.storage_id > made.storage_id):
                if not self._has_ended(plan.run_id):
                    running.add(key)
                else:
                    due[key] = self._failed(key, plan, key in changed, latest, since)
            elif made is None:
                due[key] = Due(MISSING, "never made")
            elif upstream := [up for up in self._parents[asset] if key in found.by_asset.get(up, {})]:
                due[key] = Due(STALE, f"{upstream[0].to_user_string()} is due")
            elif key in changed and set(self._parents[asset]).intersection(self._observed):
                due[key] = Due(STALE, "the raw shard has changed")
            elif (
                plan is None
                or plan.storage_id <= since.storage_id
                or not all(self._is_before(latest[up].get(key), plan, made) for up in self._parents[asset])
            ):
                open_.add(key)
        return due, running, open_

    def _by_events(
        self,
        asset: dg.AssetKey,
        keys: Collection[str],
        made: Mapping[str, EventId],
        versions: Mapping[dg.AssetKey, Mapping[str, str]],
    ) -> dict[str, Due]:
        """Return which of these partitions are stale, by what their materializations were made from."""
        ids = [made[key].storage_id for key in keys]
        found = made_from(self._instance, asset, ids, self._parents[asset])
        return {
            key: Due(STALE, reason)
            for key, inputs in found.items()
            if (reason := self._why_stale(asset, key, inputs, versions))
        }

    def _why_stale(
        self,
        asset: dg.AssetKey,
        key: str,
        inputs: MadeFrom,
        versions: Mapping[dg.AssetKey, Mapping[str, str]],
    ) -> str | None:
        if inputs.code_version != self._code_versions[asset]:
            return _OTHER_CODE
        for parent in self._parents[asset]:
            is_raw = parent in self._observed
            version = self._raw_versions[key] if is_raw else versions[parent].get(key)
            if inputs.inputs.get(parent) != version:
                return "the raw shard has changed" if is_raw else f"{parent.to_user_string()} has changed"
        return None

    def _unproven(self, asset: dg.AssetKey, running: Collection[str]) -> Iterator[tuple[str, Due]]:
        """Yield the partitions that the proof has found damaged: the next run makes them again."""
        check = dg.AssetCheckKey(asset, ZERO_LOSS)
        for key in events.failing_shards(self._instance, check, _MAX_UNPROVEN):
            if key not in running:
                yield key, Due(STALE, "not as it was written")

    def _failed(
        self,
        key: str,
        plan: EventId,
        has_changed: bool,
        latest: Mapping[dg.AssetKey, Mapping[str, EventId]],
        since: Since,
    ) -> Due:
        run = f"failed in run {plan.run_id[:8]}"
        if has_changed or self._observed_since(key, latest, plan):
            return Due(FAILED, f"{run}; the raw shard has changed since", is_mended=True)
        if since.is_change and plan.storage_id <= since.storage_id:
            return Due(FAILED, f"{run}; {_OTHER_CODE} since", is_mended=True)
        return Due(FAILED, run)

    def _observed_since(
        self, key: str, latest: Mapping[dg.AssetKey, Mapping[str, EventId]], plan: EventId
    ) -> bool:
        return any(
            (seen := latest[raw].get(key)) is not None
            and seen.storage_id > plan.storage_id
            and seen.run_id != plan.run_id
            for raw in self._observed
        )

    def _is_before(self, upstream: EventId | None, plan: EventId, made: EventId) -> bool:
        """Return whether the upstream event was there when the run began, or is the run's own."""
        if upstream is None:
            return False
        return upstream.storage_id < plan.storage_id or upstream.run_id == made.run_id

    def _has_ended(self, run_id: str) -> bool:
        if run_id not in self._ended:
            run = self._instance.get_run_by_id(run_id)
            self._ended[run_id] = run is None or run.is_finished
        return self._ended[run_id]


def due_shards(instance: dg.DagsterInstance, graph: AssetGraph, raw_versions: Mapping[str, str]) -> DueShards:
    """Return what is due in all assets of a code location; see `DueShardFinder`."""
    specs = [spec for definition in graph.assets_defs for spec in definition.specs]
    return DueShardFinder(instance, specs, raw_versions).find()
