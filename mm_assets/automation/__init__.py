"""Automation: what happens without a click. Here are due shards: those missing, failed or stale, and why.

The command ``run``, the schedule ``refresh`` and the sensor ``automation`` all ask this module
(`DueShardFinder`). It goes by ids of events, and reads an event only where these leave it open:

* A partition whose latest planned materialization has no real one since has *failed*, once the run has ended.
* A partition was made from the latest version of an input if that version was there before the partition's
  run was created, or was made by the same run before it.
* Its code version is the present one if its run was created after that version was first seen
  (`SeenCodeVersions`).

`latest_events` returns ids and runs of the latest event of each partition, in one query an asset; no event is
read.

Like `mm_assets.graph.dagster_internals`, this uses what Dagster 1.13.27 does not document: the event log's
`get_latest_tags_by_partition`, its query of the latest event of each partition, and ids and runs in the table
of events. The canary is `mm_assets_tests/automation/test_partition_events.py`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import dagster as dg
import sqlalchemy as db
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    get_input_data_version_tag,
)
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

from mm_assets.automation.whole_set import PendingVerdicts
from mm_assets.formats.raw_shards import Listing
from mm_assets.graph import dagster_internals
from mm_assets.graph.dagster_internals import (
    LIMIT_TAG,
    SETTINGS,
    SHARDS,
    TRIED_WITH,
    UNREAD,
    SeenCodeVersions,
    tried_with,
)
from mm_assets.graph.instance_queries import failing_shards, messages
from mm_assets.graph.planned_jobs import SETTINGS_MARK, parse_failure
from mm_assets.graph.proof import ZERO_LOSS
from mm_assets.settings import variable
from mm_assets.versions.diff import setting_changes

MISSING, FAILED, STALE = "missing", "failed", "stale"


@dataclass(frozen=True)
class Due:
    """Why a partition should be made: ``kind`` is missing, failed or stale, ``reason`` a few words.

    Args:
        may_land: it may be made now. One that failed may if what it is made from, the code or a setting has
            changed since, or its run was lost before it came to the partition; nothing may that is made from
            one that may not.
        parent: the asset whose due partition is the reason; if that is not made, this one is not either.
        is_missing: it failed with its run, for no fault of its own, and was never made.
    """

    kind: str
    reason: str
    may_land: bool = True
    parent: dg.AssetKey | None = None
    is_missing: bool = False

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds by which a request selects it."""
        return frozenset({self.kind, MISSING} if self.is_missing else {self.kind})


@dataclass
class DueShards:
    """Due partitions by asset, in the order of the graph, then by partition.

    ``in_progress`` are partitions that a run, which has not ended, is about to make. ``parents`` of an asset
    are those that it is made from.
    """

    by_asset: dict[dg.AssetKey, dict[str, Due]] = field(default_factory=dict)
    in_progress: dict[dg.AssetKey, set[str]] = field(default_factory=dict)
    parents: Mapping[dg.AssetKey, Collection[dg.AssetKey]] = field(default_factory=dict)

    def where(self, is_wanted: Callable[[Due], bool]) -> DueShards:
        """Return the partitions that are due for a wanted reason, and what is due further on of them.

        What is made from one that stays failed is left out.
        """
        kept: dict[dg.AssetKey, dict[str, Due]] = {}
        stay: dict[dg.AssetKey, set[str]] = {}
        for asset, due in self.by_asset.items():
            above = [parent for parent in self.parents[asset] if parent in kept]
            kept[asset] = {
                key: why
                for key, why in due.items()
                if not any(key in stay[parent] for parent in above)
                and (
                    any(key in kept[parent] for parent in above)
                    or (is_wanted(why) and (why.parent is None or key in kept.get(why.parent, {})))
                )
            }
            stay[asset] = {key for key, why in due.items() if not why.may_land and key not in kept[asset]}
        return DueShards(kept, self.in_progress, self.parents)

    def restricted(self, keys: Collection[str]) -> DueShards:
        """Return what is due of these partitions."""
        return DueShards(
            {
                asset: {key: why for key, why in due.items() if key in keys}
                for asset, due in self.by_asset.items()
            },
            self.in_progress,
            self.parents,
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


_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION
_PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
_OBSERVED = dg.DagsterEventType.ASSET_OBSERVATION
_Events = SqlEventLogStorageTable.c


class EventId(NamedTuple):
    """An event of a partition: its storage id, which grows with time, and its run ("" outside of runs)."""

    storage_id: int
    run_id: str


class MadeFrom(NamedTuple):
    """What a materialization says that it was made from: code version, and data version of each input."""

    code_version: str | None
    inputs: Mapping[dg.AssetKey, str]


def latest_events(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType
) -> dict[str, EventId]:
    """Return the latest event of a kind by partition, for all partitions that have one."""
    rows = _latest_rows(instance, asset, kind, _Events.id, _Events.run_id)
    return {key: EventId(id_, run) for key, id_, run in rows}


def latest_times(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType
) -> dict[str, float]:
    """Return the time of the latest event of a kind by partition, in seconds since 1970."""
    rows = _latest_rows(instance, asset, kind, _Events.timestamp)
    return {key: at.replace(tzinfo=UTC).timestamp() for key, at in rows}


def _latest_rows(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType, *columns: Any
) -> Sequence[Any]:
    """Return these columns of the latest event of a kind, behind its partition."""
    storage = _storage(instance)
    latest = storage._latest_event_ids_by_partition_subquery(asset, [kind])
    query = db.select(latest.c.partition, *columns).where(_Events.id == latest.c.id)
    with storage.index_connection() as connection:
        return connection.execute(query).fetchall()


def first_attempts(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, int]:
    """Return, by partition, the first plan to make it since it was last made; none if there was none."""
    storage = _storage(instance)
    made = storage._latest_event_ids_by_partition_subquery(asset, [_MATERIALIZED])
    table = _Events
    query = (
        db.select(table.partition, db.func.min(table.id))
        .select_from(SqlEventLogStorageTable.outerjoin(made, made.c.partition == table.partition))
        .where(
            table.asset_key == asset.to_string(),
            table.dagster_event_type == _PLANNED.value,
            table.partition.isnot(None),
            db.or_(made.c.id.is_(None), table.id > made.c.id),
        )
        .group_by(table.partition)
    )
    with storage.index_connection() as connection:
        return {row.partition: row[1] for row in connection.execute(query).fetchall()}


def latest_versions(
    instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType
) -> dict[str, str]:
    """Return the latest data version by partition."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(asset, kind, [DATA_VERSION_TAG])
    return {key: found[DATA_VERSION_TAG] for key, found in tags.items()}


def made_from(
    instance: dg.DagsterInstance, storage_ids: Iterable[int], inputs: Iterable[dg.AssetKey]
) -> dict[str, MadeFrom]:
    """Return what these materializations were made from, by partition. It reads each event, about
    0.03 ms."""
    tag_of_input = {key: get_input_data_version_tag(key) for key in inputs}
    found: dict[str, MadeFrom] = {}
    for told in dagster_internals.read_events(instance, storage_ids):
        versions = {key: told.tags[tag] for key, tag in tag_of_input.items() if tag in told.tags}
        found[told.partition] = MadeFrom(told.tags.get(CODE_VERSION_TAG), versions)
    return found


def runs_in_use(instance: dg.DagsterInstance, assets: Iterable[dg.AssetKey]) -> set[str]:
    """Return the runs that hold the latest event of a partition, or the latest outcome of a check."""
    kinds = (
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
        dg.DagsterEventType.ASSET_OBSERVATION,
    )
    found = {
        event.run_id
        for asset in assets
        for kind in kinds
        for event in latest_events(instance, asset, kind).values()
    }
    checks = AssetCheckExecutionsTable.c
    latest = db.select(db.func.max(checks.id)).group_by(checks.asset_key, checks.check_name, checks.partition)
    with _storage(instance).index_connection() as connection:
        query = db.select(checks.run_id).where(checks.id.in_(latest)).distinct()
        found.update(row[0] for row in connection.execute(query))
    return found


def _storage(instance: dg.DagsterInstance) -> SqlEventLogStorage:
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise TypeError(
            f"{type(storage).__name__}: only event logs in a database can be asked for partitions"
        )
    return storage


_CHANGES = 3  # settings in a reason
_OTHER_RAW = "the raw shard has changed"

_MAX_UNPROVEN = 10_000  # failed proofs to look at
# A run that was lost is not tried again at once: what ended it may go on.
_RETRY_SECONDS = 600


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
        changes_nothing: whether to look without a note for the next look (`SeenCodeVersions`).
        lost: runs that are over though the instance does not know it yet.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        specs: Sequence[dg.AssetSpec],
        raw_versions: Mapping[str, str],
        *,
        changes_nothing: bool = False,
        lost: Iterable[str] = (),
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
        self._verdicts = {key: PendingVerdicts.of(instance, spec.metadata) for key, spec in by_key.items()}
        self._settings = {key: spec.metadata.get(SETTINGS, {}) for key, spec in by_key.items()}
        self._differences: dict[tuple[dg.AssetKey, str | None], str] = {}
        self._limits = {key: spec.tags.get(LIMIT_TAG) for key, spec in by_key.items()}
        self._seen = SeenCodeVersions(instance, is_noted=not changes_nothing)
        self._latest: dict[dg.AssetKey, Mapping[str, EventId]] = {}
        self._versions: dict[dg.AssetKey, Mapping[str, str]] = {}
        self._told: dict[str, Collection[tuple[str, str]]] = {}
        self._ended = dict.fromkeys(lost, True)

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
        seen = self._seen.see(asset, self._code_versions[asset], self._settings[asset])
        old = None if seen.is_confirmed else seen.since
        changes = [seen, *([self._seen.see_limit(asset, limit)] if (limit := self._limits[asset]) else [])]
        changed = max((change.since for change in changes if change.is_change), default=None)
        by_ids = self._by_ids(asset, planned, found, changed, old)
        made = self._latest[asset]
        read = made_from(
            self._instance, [made[key].storage_id for key in by_ids.unread], self._parents[asset]
        )
        others = not all(self._is_current(asset, inputs.code_version) for inputs in read.values())
        if old is not None and not others and all(planned[key].storage_id > old for key in by_ids.running):
            self._seen.confirm(asset, seen)
        due = by_ids.due
        for key, inputs in read.items():
            if key in self._raw_versions and key not in due and (why := self._why_stale(asset, key, inputs)):
                due[key] = Due(STALE, why)
        verdicts = self._verdicts[asset]
        for key in verdicts.changed(self._latest[asset]) if verdicts else ():
            if key in self._raw_versions and key not in due and key not in by_ids.running:
                due[key] = Due(STALE, "other duplicates")
        for key in failing_shards(self._instance, dg.AssetCheckKey(asset, ZERO_LOSS), _MAX_UNPROVEN):
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
        failed: dict[str, EventId] = {}
        # Asked once, not of each of a hundred thousand partitions.
        sources = [self._latest[parent] for parent in self._parents[asset]]
        is_due_above = any(found.by_asset.get(parent) for parent in self._parents[asset])
        may_be_changed = is_due_above or bool(self._changed_raw)
        for key in [*self._raw_versions, *(key for key in made if key not in self._raw_versions)]:
            plan, done = planned.get(key), made.get(key)
            if plan is not None and (done is None or plan.storage_id > done.storage_id):
                if self._has_ended(plan.run_id):
                    failed[key] = plan
                else:
                    result.running.add(key)
                continue
            if done is None:
                parent, may_land = self._due_parent(asset, key, found)
                result.due[key] = Due(MISSING, "never made", may_land, parent)
                continue
            cause = self._changed_input(asset, key, found) if may_be_changed else None
            if cause is not None:
                result.due[key] = cause
            # The latest plan is not that of the run that made it, if two runs made it at the same time.
            own = plan if plan is not None and plan.run_id == done.run_id else None
            may_be_old = old is not None and (own is None or own.storage_id <= old)
            is_current = own is not None and _is_made_from_latest(key, own, done, sources)
            if may_be_old or not (is_current or cause or key not in self._raw_versions):
                result.unread.add(key)
        observed = dagster_internals.latest_observations(self._instance, asset, failed)
        present = tried_with(self._code_versions[asset], self._limits[asset])
        for key, plan in failed.items():
            told = observed.get(key)
            by_content = told is not None and told.run_id == plan.run_id
            # A run with other settings, by the launchpad, also changes the version that was seen last.
            by = told.metadata.get(TRIED_WITH) if told is not None and by_content else None
            is_old = code_changed is not None and plan.storage_id <= code_changed
            has_changed = is_old if by is None else by != present
            changes = self._changes_since(asset, by) if has_changed else ""
            result.due[key] = self._failed(asset, key, plan, found, changes, by_content)
        return result

    def _changed_input(self, asset: dg.AssetKey, key: str, found: DueShards) -> Due | None:
        """Return which input has changed, without a look at what the partition was made from."""
        parent, may_land = self._due_parent(asset, key, found)
        if parent is not None:
            return Due(STALE, f"{parent.to_user_string()} is due", may_land, parent)
        if key not in self._changed_raw:
            return None
        is_from_raw = any(not self._parents[parent] for parent in self._parents[asset])
        return Due(STALE, _OTHER_RAW) if is_from_raw else None

    def _due_parent(self, asset: dg.AssetKey, key: str, found: DueShards) -> tuple[dg.AssetKey | None, bool]:
        """Return an input that is due, and whether all inputs may be made now."""
        due = {
            parent: found.by_asset[parent][key]
            for parent in self._parents[asset]
            if key in found.by_asset.get(parent, {})
        }
        return next(iter(due), None), all(why.may_land for why in due.values())

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

    def _why_stale(self, asset: dg.AssetKey, key: str, inputs: MadeFrom) -> str | None:
        """Return why a partition is stale, by what its materialization was made from."""
        for parent in self._parents[asset]:
            is_raw = not self._parents[parent]
            version = self._raw_versions[key] if is_raw else self._versions_of(parent).get(key)
            if inputs.inputs.get(parent) != version:
                return _OTHER_RAW if is_raw else f"{parent.to_user_string()} has changed"
        if self._is_current(asset, inputs.code_version):
            return None
        return self._difference(asset, inputs.code_version)

    def _changes_since(self, asset: dg.AssetKey, by: str | None) -> str:
        """Return what is another now than a shard failed by (`tried_with`), in words."""
        version, _, limit = (by or "").partition(", ")
        parts = [] if version == self._code_versions[asset] else [self._difference(asset, version)]
        before, now = (each.split("_") for each in (limit, self._limits[asset] or ""))
        if limit and before[0] != now[0]:
            parts.append(f"{variable('max_loss')} was {before[0]}, is {now[0]}")
        if limit and before[1:] != now[1:]:
            parts.append(f"{variable('schema_changes')} has changed")
        return "; ".join(parts)

    def _difference(self, asset: dg.AssetKey, version: str | None) -> str:
        """Return what is another now than in a code version, in words."""
        if (asset, version) not in self._differences:
            before = self._seen.settings(asset, version)
            changes = setting_changes(asset.to_user_string(), before, self._settings[asset])
            more = f"; and {len(changes) - _CHANGES} more" if len(changes) > _CHANGES else ""
            self._differences[asset, version] = f"{'; '.join(changes[:_CHANGES])}{more}"
        return self._differences[asset, version]

    def _is_current(self, asset: dg.AssetKey, code_version: str | None) -> bool:
        """Return whether a code version is the present one.

        One that names no settings is of an older release of this package, whose outputs are as good.
        """
        present = self._code_versions[asset]
        return code_version in (present, (present or "").partition(SETTINGS_MARK)[0])

    def _failed(
        self,
        asset: dg.AssetKey,
        key: str,
        plan: EventId,
        found: DueShards,
        changes: str,
        by_content: bool,
    ) -> Due:
        """Return why a partition is due that its latest run did not make.

        Args:
            changes: what of code and settings is another than that it failed by; empty: nothing.
            by_content: an observation tells that it failed for its content.
        """
        run = f"failed in run {plan.run_id[:8]}"
        due, may_land = self._due_parent(asset, key, found)
        if not may_land:
            return replace(self._failed_alike(asset, key, plan, by_content), may_land=False)
        if changes:
            return Due(FAILED, f"{run}; since then: {changes}")
        if due is not None:
            return Due(FAILED, f"{run}; {due.to_user_string()} is due")
        for parent in self._parents[asset]:
            is_raw = not self._parents[parent]
            latest = self._latest[parent].get(key)
            is_newer = (
                latest is not None and latest.storage_id > plan.storage_id and latest.run_id != plan.run_id
            )
            if is_newer or (is_raw and key in self._changed_raw):
                cause = _OTHER_RAW if is_raw else f"{parent.to_user_string()} has been made"
                return Due(FAILED, f"{run}; {cause} since")
        return self._failed_alike(asset, key, plan, by_content)

    def _failed_alike(self, asset: dg.AssetKey, key: str, plan: EventId, by_content: bool) -> Due:
        """Return why a partition failed of which nothing has changed since: its content, or it was lost."""
        run = f"run {plan.run_id[:8]}"
        record = self._instance.get_run_record_by_id(plan.run_id)
        if by_content or record is None or (asset.to_user_string(), key) in self._reported(plan.run_id):
            return Due(FAILED, f"failed in {run}", may_land=False)
        is_missing = key not in self._latest[asset]
        if record.dagster_run.status == dg.DagsterRunStatus.CANCELED:
            return Due(FAILED, f"{run} was canceled", may_land=False, is_missing=is_missing)
        may_land = time.time() - (record.end_time or 0) > _RETRY_SECONDS
        return Due(FAILED, f"{run} ended before it was made", may_land, is_missing=is_missing)

    def _reported(self, run_id: str) -> Collection[tuple[str, str]]:
        """Return the assets and partitions of which the messages of a run tell that they failed.

        Early releases logged no observation, and the latest one may be of another run.
        """
        if run_id not in self._told:
            told = filter(None, map(parse_failure, messages(self._instance, run_id)))
            self._told[run_id] = {(failure.asset, failure.key) for failure in told}
        return self._told[run_id]

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


def _is_made_from_latest(
    key: str, plan: EventId, made: EventId, sources: Iterable[Mapping[str, EventId]]
) -> bool:
    """Return whether a partition was made from the latest events of the assets that it is made from."""
    for events in sources:
        latest = events.get(key)
        if latest is None:
            return False
        if latest.storage_id > plan.storage_id and not (
            latest.run_id == made.run_id and latest.storage_id < made.storage_id
        ):
            return False
    return True


def versions_of_partitions(instance: dg.DagsterInstance, listing: Listing) -> dict[str, str]:
    """Return the versions of the raw shards that have a partition; of a gone one there is none."""
    known = instance.get_dynamic_partitions(str(SHARDS.name))
    return {key: listing[key].version for key in known if key in listing}


def due_shards(
    instance: dg.DagsterInstance, graph: AssetGraph, raw_versions: Mapping[str, str], **how: Any
) -> DueShards:
    """Return what is due in all assets of a code location; see `DueShardFinder`, also for ``how``."""
    specs = [spec for made in graph.assets_defs for spec in made.specs if spec.partitions_def]
    return DueShardFinder(instance, specs, raw_versions, **how).find()
