"""Request of a headless run: shards and assets, all of them or what is due.

* `select` turns a `MakeRequest` into a `Selection`: the partitions to make, by asset, with reasons.
* `look_at_all` finds that no run is needed: nothing is due, and all outputs are there as published and
  proven. What one shard decides of another (who keeps a sample id, the types of columns) is asked as a run
  asks it, unless nothing was made since a run of all shards, or such a look, saw to it. That is noted in the
  instance's key-value store. Where a few shards are due, it says which: once they are made, it is asked of
  the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from mm_assets import __version__
from mm_assets.accounting import (
    BY_ASSET,
    CURATED,
    ShardRecord,
    stated_partitions,
    statistics_folder,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.retirement import RETIRED
from mm_assets.automation import (
    FAILED,
    MISSING,
    STALE,
    Due,
    DueShardFinder,
    DueShards,
    latest_events,
    latest_versions,
)
from mm_assets.filters.duplicates import VerdictIndex
from mm_assets.formats.raw_shards import Listing
from mm_assets.graph import Shard, ShardResult, ShardSet, digest
from mm_assets.graph.assets import plan_of
from mm_assets.graph.dagster_internals import SHARDS, chunks
from mm_assets.graph.io_manager import ShardIOManager
from mm_assets.graph.planned_jobs import SETTINGS_MARK
from mm_assets.graph.raw import RAW_SHARDS, judged_before
from mm_assets.graph.shard_jobs import has_passed
from mm_assets.model.errors import DataError, counted
from mm_assets.storage.files import is_remote, join
from mm_assets.terminal import ProgressLine

Records = Mapping[str, Mapping[str, ShardRecord]]  # asset -> partition -> record

_NAMED = 5  # shards in the line of a reason
_BRIDGED = 30  # partitions in a row that a run takes because it has others on both sides
_MOST_TOGETHER = 2000  # shards whose plans are looked at together: each time all others are asked
_MOST_SAMPLES = 1 << 19  # in all of these but the last
_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION
_OBSERVED = dg.DagsterEventType.ASSET_OBSERVATION
_LAST_RUN = "mm_assets/last_run"
_RUN = re.compile(r"\brun [0-9a-f]{8}\b")


@dataclass(frozen=True)
class MakeRequest:
    """What the user asks for.

    Args:
        shards: partitions to make; none: all.
        assets: names of assets; none: all.
        kinds: make only what is missing, failed or stale (`due_shards`); none: everything.
        limit: largest number of shards.
    """

    shards: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    limit: int | None = None


@dataclass(frozen=True)
class Selection:
    """What a run shall make: partitions by the assets that they are made in.

    ``why`` has the reason of each partition that is due, by asset. ``skipped`` is the number of shards beyond
    the limit. ``current`` are due in nothing: a run that takes them, too, leaves them as they are.
    """

    groups: Mapping[tuple[dg.AssetKey, ...], Sequence[str]]
    why: Mapping[dg.AssetKey, Mapping[str, Due]]
    skipped: int = 0
    current: frozenset[str] = frozenset()

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for keys in self.groups.values() for key in keys))

    @property
    def keys_by_asset(self) -> dict[str, list[str]]:
        """The partitions to make, by name of the asset."""
        found: dict[str, list[str]] = {}
        for assets, keys in self.groups.items():
            for asset in assets:
                found.setdefault(asset.to_user_string(), []).extend(keys)
        return found

    def only(self, names: Collection[str]) -> Selection:
        """Return the selection with these assets alone."""
        return self._where(lambda asset: asset.to_user_string() in names)

    def without(self, names: Collection[str]) -> Selection:
        """Return the selection without these assets."""
        return self._where(lambda asset: asset.to_user_string() not in names)

    def _where(self, is_kept: Callable[[dg.AssetKey], bool]) -> Selection:
        groups: dict[tuple[dg.AssetKey, ...], Sequence[str]] = {}
        for assets, keys in self.groups.items():
            if kept := tuple(filter(is_kept, assets)):
                groups[kept] = [*groups.get(kept, ()), *keys]
        return replace(self, groups=groups)

    def of_shards(self, keys: Collection[str]) -> Selection:
        """Return the selection with these shards alone."""
        groups = {assets: [key for key in chosen if key in keys] for assets, chosen in self.groups.items()}
        return replace(self, groups={assets: chosen for assets, chosen in groups.items() if chosen})

    def with_more(self, more: Selection) -> Selection:
        """Return the selection with the shards of another one, which has none of the same."""
        groups = dict(self.groups)
        for assets, keys in more.groups.items():
            groups[assets] = [*groups.get(assets, ()), *keys]
        return replace(self, groups=groups, current=more.current)

    def with_reasons(self, more: Mapping[dg.AssetKey, Mapping[str, Due]]) -> Selection:
        """Return the selection with reasons of partitions that have none so far."""
        names = [*self.why, *(asset for asset in more if asset not in self.why)]
        return replace(
            self, why={asset: {**more.get(asset, {}), **self.why.get(asset, {})} for asset in names}
        )

    def runs(self, order: Sequence[str]) -> list[tuple[tuple[dg.AssetKey, ...], list[str]]]:
        """Return the assets and partitions of each run.

        A run takes a range of partitions, and costs as much as a look at many that are as they should be.

        Args:
            order: all partitions, as they were added.
        """
        positions = {key: position for position, key in enumerate(order)}
        found = []
        for assets, keys in self.groups.items():
            chosen = sorted(positions[key] for key in keys)
            gaps = [order[last + 1 : place] for last, place in pairwise(chosen)]
            near = (gap for gap in gaps if len(gap) <= _BRIDGED and self.current.issuperset(gap))
            between = [key for gap in near for key in gap]
            found += [(assets, run) for run in chunks([*keys, *between], order)]
        return found

    def lines(self) -> list[str]:
        """Return what would be made, and why: a line for each reason and the assets that it is true of.

        Assets that are due only because an input is, stand in the line of that input's reason.
        """
        found: dict[tuple[str, str], list[str]] = {}
        for key in self.keys:
            places: dict[str, tuple[list[str], list[str]]] = {}
            for asset, why in ((asset, due[key]) for asset, due in self.why.items() if key in due):
                root = why
                while (above := self._above(root, key)) is not None:
                    root = above
                text = _RUN.sub("a run", root.reason)
                text = text if text.startswith(root.kind) else f"{root.kind}: {text}"
                own, others = places.setdefault(text, ([], []))
                (own if root is why else others).append(asset.to_user_string())
            for text, (own, others) in places.items():
                found.setdefault((text, self._named(own, others)), []).append(key)
        lines = []
        for (text, where), keys in found.items():
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            named = f"{', '.join(keys[:_NAMED])}{more}"
            lines.append(f"{text}: {counted(len(keys), 'shard')} in {where} ({named})")
        return lines

    def _above(self, why: Due, key: str) -> Due | None:
        """Return why the input is due, where an asset is for no reason but that."""
        return self.why.get(why.parent, {}).get(key) if why.kind == STALE and why.parent else None

    def _named(self, own: Sequence[str], others: Sequence[str]) -> str:
        """Return the assets of a reason: those that it is true of, and those that are made from these."""
        if len(own) == len(self.why) > 1:
            return f"{len(own)} assets"
        is_all = len(own) + len(others) == len(self.why)
        made_from = f", and in {'all that' if is_all else 'what'} is made from it" if others else ""
        names = f": {', '.join(others)}" if others and not is_all else ""
        return f"{', '.join(own)}{made_from}{names}"


def select(
    request: MakeRequest,
    instance: dg.DagsterInstance,
    specs: Sequence[dg.AssetSpec],
    listing: Listing,
    absent: Sequence[str] = (),
    explains: bool = False,
) -> Selection:
    """Return what is to be made of the raw shards that are there.

    Args:
        absent: partitions to take, too, where all are: they fail.
        explains: whether to say also of a request for everything what is due in it.

    Raises:
        DataError: for a shard or an asset that there is not; the message has the nearest name.
    """
    materializable = [spec.key for spec in specs if spec.deps]
    names = {key.to_user_string(): key for key in materializable}
    for spec in specs:
        if not spec.deps and spec.key.to_user_string() in request.assets:
            raise DataError(f"{spec.key.to_user_string()!r}: an asset that is observed, not made")
    assets = [names[known(name, names, "asset")] for name in dict.fromkeys(request.assets)] or materializable
    named = [known(key, listing, "raw shard") for key in dict.fromkeys(request.shards)]
    keys = named or [*listing, *absent]
    due, current = DueShards(), frozenset[str]()
    if request.kinds or explains:
        versions = {key: shard.version for key, shard in listing.items()}
        due = DueShardFinder(instance, specs, versions).find(assets)
        busy = {*due.partitions(), *(key for running in due.in_progress.values() for key in running)}
        current = frozenset(key for key in listing if key not in busy)
        due = due.restricted(set(keys))
    if request.kinds:
        due = due.where(lambda why: not why.kinds.isdisjoint(request.kinds))
        keys = due.partitions()
    chosen = keys if request.limit is None else keys[: request.limit]
    if request.kinds:
        groups = due.restricted(set(chosen)).by_assets()
    else:
        groups = {tuple(assets): chosen} if chosen else {}
    return Selection(groups, due.by_asset, len(keys) - len(chosen), current)


def known(name: str, names: Collection[str], what: str) -> str:
    """Return a name that there is.

    Raises:
        DataError: there is none such; the message says of ``what``, and has the nearest one.
    """
    if name in names:
        return name
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    raise DataError(f"{name!r}: no such {what}" + (f"; the nearest is {near[0]!r}" if near else ""))


def note_run(
    instance: dg.DagsterInstance,
    definitions: dg.Definitions,
    resources: Mapping[str, Any],
    listing: Listing,
    is_whole: bool,
) -> None:
    """Note that nothing failed, and what there was to see of raw shards.

    Args:
        is_whole: whether all shards went through all assets.
    """
    latest, root = instance.event_log_storage.get_maximum_record_id() or 0, resources["prover"].root
    assets = [spec.key.to_user_string() for spec in partitioned_specs(definitions) if spec.deps]
    ledger, records = Ledger(root), {}
    if is_whole:
        # The next look need not read them; of a store each would be a request.
        read = ledger.records if is_remote(root) else ledger.whole_records
        records = {asset: read(asset, list(listing)) for asset in assets}
    _note(
        instance, latest if is_whole else 0, _present(instance, root, listing, assets), _made(root, records)
    )


def _note(instance: dg.DagsterInstance, *noted: int | str) -> None:
    instance.run_storage.set_cursor_values({_LAST_RUN: json.dumps(noted)})


def _present(
    instance: dg.DagsterInstance,
    root: str,
    listing: Listing,
    assets: Collection[str],
    new: Collection[str] = (),
) -> str:
    """Return a digest of the shards that there are, or were: a run tells of those that came or went.

    Args:
        new: shards that are left out.
    """
    known = instance.get_dynamic_partitions(str(SHARDS.name))
    retired = stated_partitions(join(root, "ledger", RETIRED), ".json")
    named = {asset: [key for key in Ledger(root).named(asset) if key not in new] for asset in sorted(assets)}
    shards = [sorted(set(keys).difference(new)) for keys in (listing, known)]
    return digest(json.dumps([root, __version__, *shards, retired, named]))


def _made(root: str, records: Records) -> str:
    """Return a digest of what each shard was made from. Somebody else may make shards in the same storage."""
    recorded = {
        asset: sorted((key, record.fingerprint, record.version) for key, record in by_key.items())
        for asset, by_key in sorted(records.items())
    }
    return digest(json.dumps([recorded, sorted(VerdictIndex.read(statistics_folder(root)).shards.items())]))


def partitioned_specs(definitions: dg.Definitions) -> list[dg.AssetSpec]:
    """Return the assets that are made by shard, and the raw shards."""
    return [spec for spec in definitions.resolve_all_asset_specs() if spec.partitions_def]


@dataclass(frozen=True)
class Look:
    """What there is to do.

    Args:
        records: those of all shards in all assets, if there is nothing.
        due: shards that are to be made before more can be said; none: a run has to take all.
    """

    records: Records | None = None
    due: frozenset[str] = frozenset()


def look_at_all(
    instance: dg.DagsterInstance,
    definitions: dg.Definitions,
    resources: Mapping[str, Any],
    listing: Listing,
    needs_scores: bool = False,
    tells_of_new: bool = False,
) -> Look:
    """Look whether a run has anything to do.

    It sees what a run of all shards sees: also outputs that somebody has removed or changed. No output is
    read, but for the small files of its ledger. Nothing is written but index files and sums of proofs that
    are not as they were, and the note of what was seen.

    Args:
        needs_scores: whether filters compare a shard with the scores of all: only a run computes that anew.
        tells_of_new: whether the caller has made what an earlier look found due, and tells of it.
    """
    progress = ProgressLine(len(partitioned_specs(definitions)))
    try:
        return _look(instance, definitions, resources, listing, needs_scores, tells_of_new, progress)
    except Exception:  # noqa: BLE001
        # What cannot be read, or planned, is for the run: it fails what it concerns, and names it. What plans
        # it may be a plugin's, which raises anything.
        return Look()
    finally:
        progress.end()


def _look(
    instance: dg.DagsterInstance,
    definitions: dg.Definitions,
    resources: Mapping[str, Any],
    listing: Listing,
    needs_scores: bool,
    tells_of_new: bool,
    progress: ProgressLine,
) -> Look:
    noted = instance.run_storage.get_cursor_values({_LAST_RUN}).get(_LAST_RUN)
    if not noted:
        return Look()
    latest, present, made_from = json.loads(noted)
    now = instance.event_log_storage.get_maximum_record_id() or 0
    progress.show(0, "looking for what there is to do")
    graph, prover = definitions.resolve_asset_graph(), resources["prover"]
    versions = {key: shard.version for key, shard in listing.items()}
    finder = DueShardFinder(instance, partitioned_specs(definitions), versions)
    due = finder.find()
    if any(due.in_progress.values()):
        return Look()
    names = [asset.to_user_string() for asset in due.by_asset]

    def look_of_due(keys: Collection[str], new: Collection[str] = ()) -> Look:
        is_same = present == _present(instance, prover.root, listing, names, new)
        return Look(due=frozenset(keys)) if is_same else Look()

    if keys := due.partitions():
        whys = due.by_asset.values()
        # Whether a shard that has failed fails again decides what others may take over from it.
        if any(why.kind == FAILED for of_asset in whys for why in of_asset.values()):
            return Look()
        new = {key for key in keys if all(key in why and why[key].kind == MISSING for why in whys)}
        return look_of_due(keys, new)
    found: dict[str, Mapping[str, ShardRecord]] = {}
    for number, asset in enumerate(due.by_asset):
        name, manager = asset.to_user_string(), _manager(graph, resources, asset)
        progress.show(number, f"looking at {name}: {counted(len(listing), 'shard')}")
        versions_made = latest_versions(instance, asset, _MATERIALIZED)
        made = _as_published(manager, name, versions_made, list(listing), keeps=True)
        if not _passes_checks(graph.get(asset).assets_def, asset, made.values()):
            return Look()
        if any(record.is_earlier for record in made.values()):  # a run makes their accounts
            return Look()
        if altered := listing.keys() - made.keys():
            return look_of_due(altered)
        found[name] = made
    now_present = _present(instance, prover.root, listing, names)
    if present != now_present and not tells_of_new:
        return Look()
    if finder.latest_materialization() > latest or made_from != _made(prover.root, found):
        progress.show(len(due.by_asset), "asking what shards decide of each other")
        if needs_scores or not _is_as_planned(instance, graph, resources, listing, found):
            return Look()
        _note(instance, now, now_present, _made(prover.root, found))
    for asset in due.by_asset:
        _manager(graph, resources, asset).repair_derived()
    proven = prover.proven({name: records for name, records in found.items() if name in BY_ASSET})
    is_proven = all(len(keys) == len(listing) for keys in proven.values())
    return Look(found) if is_proven else Look()


def _is_as_planned(
    instance: dg.DagsterInstance,
    graph: AssetGraph,
    resources: Mapping[str, Any],
    listing: Listing,
    records: Records,
) -> bool:
    """Return whether runs of all shards would plan each as it was made, and judge no raw shard anew.

    Shards that are as planned are planned alike by one run and by several.
    """
    pointers = {
        key: event.storage_id for key, event in latest_events(instance, RAW_SHARDS, _OBSERVED).items()
    }
    if listing.keys() - pointers.keys():  # somebody has wiped their observations
        return False
    if judged_before(instance, RAW_SHARDS, {key: pointers[key] for key in listing}):
        return False
    failed: list[ShardResult] = []
    for keys in _together(listing, records[CURATED.asset]):
        raw = RAW_SHARDS.to_user_string()
        inputs = {
            raw: ShardSet(raw, tuple(Shard(key, listing[key].uri, listing[key].version) for key in keys))
        }
        for name, of_asset in records.items():
            shards = tuple(Shard(key, of_asset[key].uri, of_asset[key].version) for key in keys)
            inputs[name] = ShardSet(name, shards)
        for name, of_asset in records.items():
            asset = dg.AssetKey.from_user_string(name)
            required, blocking = _checks(graph.get(asset).assets_def, asset)
            version = (graph.get(asset).code_version or "").partition(SETTINGS_MARK)[0]
            plan, manager = plan_of(asset, resources, inputs), _manager(graph, resources, asset)
            planned = manager.planned_jobs(name, keys, plan, version, blocking, failed.append)
            if failed or not all(planned[key].is_up_to_date(of_asset[key], required) for key in keys):
                return False
    return True


def _together(keys: Iterable[str], made: Mapping[str, ShardRecord]) -> Iterator[list[str]]:
    """Yield shards, as many as are in memory at a time, by the samples of each, published or lost."""
    found: list[str] = []
    samples = 0
    for key in keys:
        found.append(key)
        account = made[key].account
        samples += account["written"]["samples"] + account["lost"]["rows"]  # at least one of a lost sample
        if len(found) >= _MOST_TOGETHER or samples >= _MOST_SAMPLES:
            yield found
            found, samples = [], 0
    if found:
        yield found


def _checks(asset: dg.AssetsDefinition, key: dg.AssetKey) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the checks of an asset, and of those that keep a shard back."""
    specs = [spec for spec in asset.check_specs if spec.asset_key == key]
    return frozenset(spec.name for spec in specs), frozenset(spec.name for spec in specs if spec.blocking)


def _passes_checks(asset: dg.AssetsDefinition, key: dg.AssetKey, records: Iterable[ShardRecord]) -> bool:
    """Return whether each record has all checks of the asset, and none that keeps its shard back."""
    required, blocking = _checks(asset, key)
    return all(has_passed(record, required, blocking) for record in records)


def altered_shards(
    instance: dg.DagsterInstance,
    definitions: dg.Definitions,
    resources: Mapping[str, Any],
    assets: Collection[dg.AssetKey],
    keys: Collection[str],
) -> dict[dg.AssetKey, dict[str, Due]]:
    """Return the shards, by asset, whose outputs somebody has removed or changed."""
    graph = definitions.resolve_asset_graph()
    found: dict[dg.AssetKey, dict[str, Due]] = {}
    for asset in assets:
        versions = latest_versions(instance, asset, _MATERIALIZED)
        made = [key for key in keys if key in versions]
        manager = _manager(graph, resources, asset)
        intact = _as_published(manager, asset.to_user_string(), versions, made, keeps=False)
        found[asset] = {key: Due(STALE, "not as it was published") for key in made if key not in intact}
    return found


def _manager(graph: AssetGraph, resources: Mapping[str, Any], asset: dg.AssetKey) -> ShardIOManager:
    made_in = graph.get(asset).assets_def
    manager: ShardIOManager = resources[made_in.get_io_manager_key_for_asset_key(asset)]
    return manager


def _as_published(
    manager: ShardIOManager, asset: str, versions: Mapping[str, str], keys: Sequence[str], *, keeps: bool
) -> Mapping[str, ShardRecord]:
    """Return the records of the shards that have one of their version, and all that it tells of.

    Args:
        versions: what was materialized last, by partition.
        keeps: as in `Ledger.whole_records`.
    """
    found = Ledger(manager.root).whole_records(asset, keys, keeps=keeps)
    current = {key: record for key, record in found.items() if record.version == versions.get(key)}
    return manager.intact_records(asset, current)
