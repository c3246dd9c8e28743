"""Differences between two states of the outputs: samples added, dropped and changed, and why.

* `Diff` goes through two tags, or a tag and the current state, partition by partition.
* `Comparison` finds the samples that differ in a partition, each a `Difference`.
* `causes_of` tells why an output is another: settings, code, raw data, or what other shards have.
  `setting_changes` are its texts on settings and code, and those on shards that are stale for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pyarrow.compute as pc

from mm_assets.accounting import BY_ASSET
from mm_assets.accounting.accounts import Ledger
from mm_assets.filters.id_list import IdFilter
from mm_assets.filters.registry import known_filters
from mm_assets.model.errors import DataError
from mm_assets.pool import WorkerFailure
from mm_assets.pool.workers import WorkerPool
from mm_assets.settings import Settings, variable
from mm_assets.settings_file import load_plugins
from mm_assets.storage.files import join
from mm_assets.versions import (
    FOLDER,
    CaptureJob,
    CurrentState,
    Group,
    OutputState,
    SampleStore,
    capture,
    merged,
)
from mm_assets.versions.tagging import NOW, Manifest

RAW = "raw_shards"
RAW_CHANGED = "raw data changed"
OTHER_SHARDS = "types or sample ids of other shards"
UNKNOWN = "cause not recorded by the release that made it"
_STEPS = "steps."
_TEXT = 60  # characters of a value
_RENAMED = {"max_pixels": "max_image_pixels"}  # fields of steps, with the setting that they come from
# Options that a record has only where they are not the default, with the setting that they come from.
_LEFT_OUT = {"options.images": "filtered"}


def causes_of(before: Group, after: Group) -> dict[str, tuple[str, ...]]:
    """Return for each asset in both groups why its partition is another; nothing for an equal origin.

    The cause of an input is that of what was made from it, so the first causes come through to the last
    output.
    """
    found: dict[str, tuple[str, ...]] = {}
    for asset, new in after.items():  # in the order of the graph: inputs come first
        if asset in before:
            found[asset] = tuple(dict.fromkeys(_causes(before[asset], new, found)))
    return found


def _causes(old: OutputState, new: OutputState, upstream: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    if old.fingerprint == new.fingerprint:
        return
    if old.made_by != new.made_by:
        yield from setting_changes(new.asset, old.settings, new.settings)
    if not old.inputs or not new.inputs:
        if old.made_by == new.made_by:
            yield UNKNOWN
        return
    changed = [asset for asset in new.inputs if old.inputs.get(asset) != new.inputs[asset]]
    for asset in changed:
        if asset == RAW:
            yield RAW_CHANGED
        else:
            yield from upstream.get(asset) or (UNKNOWN,)
    if not changed and old.made_by == new.made_by:
        yield OTHER_SHARDS


def setting_changes(asset: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a text for each setting, or version of code, that is another.

    Args:
        asset: what was made by them.
        old: settings as records have them; empty: not known.
        new: likewise.
    """
    if not old or not new:
        return ["code or settings have changed"]
    steps, before, after = _changed_steps(old, new), dict(_flat(old)), dict(_flat(new))
    names = [
        name
        for name in before | after
        if _shown(before, name) != _shown(after, name)
        # Version and action of a step that only one of them has say nothing.
        and not (name.endswith((".version", ".action")) and _step(name) in steps)
    ]
    changes = [_change(asset, name, _shown(before, name), _shown(after, name)) for name in names]
    named = {_step(name) for name in names}
    changes += [
        f"{step} was {'set' if is_gone else 'unset'}, is {'unset' if is_gone else 'set'}"
        for step, is_gone in steps.items()
        if step not in named
    ]
    return changes or ["code has changed"]


def _change(asset: str, name: str, before: str, after: str) -> str:
    if name == "code_version" or name.startswith("checks.") or name.endswith(".version"):
        check = name.removeprefix("checks.")
        of = asset if name == "code_version" else f"check {check}" if check != name else _step(name)
        return f"code of {of}: version {before} -> {after}"
    return f"{_label(name)} was {before}, is {after}"


def _label(name: str) -> str:
    """Return the variable of a setting; its name in the record, where it has none."""
    if (found := _filter_settings().get(name)) is not None:
        return found[0]
    field = name.rpartition(".")[2]
    field = _LEFT_OUT.get(name) or _RENAMED.get(field, field)
    known = any(field == each.name for each in fields(Settings))
    return variable(field) if known else name.removeprefix(_STEPS).removeprefix("options.")


@cache
def _filter_settings() -> dict[str, tuple[str, Any]]:
    """Return variable and default of each setting of filters, by their names in records."""
    found: dict[str, tuple[str, Any]] = {}
    for kind in known_filters(load_plugins()):
        found[f"{_STEPS}{kind.name}.action"] = (f"{variable('filter_actions')} of {kind.name}", None)
        defaults = {each.name: each.default for each in fields(kind)}
        for field, known in kind.settings().items():
            found[f"{_STEPS}{kind.name}.{field}"] = (variable(known.name), defaults[field])
        if issubclass(kind, IdFilter):  # what its files hold is recorded, not where they lie
            found[f"{_STEPS}{kind.name}.digests"] = (variable(kind.name), ())
    return found


def _changed_steps(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, bool]:
    """Return the steps that only one of two records has, and whether it is the old one."""
    before, after = old.get("steps", {}), new.get("steps", {})
    return {step: step in before for step in before | after if (step in before) != (step in after)}


def _step(name: str) -> str:
    """Return the step that a setting belongs to; empty for other settings."""
    return name.removeprefix(_STEPS).partition(".")[0] if name.startswith(_STEPS) else ""


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name in _LEFT_OUT:
        return str(values.get(name, getattr(Settings, _LEFT_OUT[name])))
    text = str(values.get(name))
    default = _filter_settings()[name][1] if name in _filter_settings() else None
    if text in ("None", str(default)):  # a bound that bounds nothing, among others
        return "unset"
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


ADDED, DROPPED, CHANGED = "added", "dropped", "changed"
_POSITIONS = 5  # named in a line
_LOSS_COLUMNS = ["sample_id", "position", "modality", "outcome", "kind", "is_cause"]

Loss = tuple[int | None, str, str]  # position, outcome, kind
_Why = tuple[tuple[str, ...], str]  # short reasons, the whole text


@dataclass(frozen=True)
class Difference:
    """One sample of one shard that differs.

    Args:
        change: added, dropped or changed.
        assets: outputs in which it differs in this way.
        reasons: short texts to count by: what took the sample or an item out, else the causes.
        why: the whole text.
    """

    change: str
    partition: str
    sample_id: str
    assets: tuple[str, ...]
    reasons: tuple[str, ...]
    why: str


class Comparison:
    """Two states, compared partition by partition.

    Args:
        before: stores to look in for the sample digests and lost items of the first state.
        after: likewise for the second.
    """

    def __init__(self, before: Sequence[SampleStore], after: Sequence[SampleStore]) -> None:
        self._before, self._after = before, after

    def differences(self, partition: str, before: Group, after: Group) -> list[Difference]:
        """Return the differences of a partition, by sample."""
        causes = causes_of(before, after)
        losses = _Losses(before, self._before), _Losses(after, self._after)
        changed: dict[str, _AssetChanges] = {}
        for asset in BY_ASSET:
            old, new = before.get(asset), after.get(asset)
            if (old.version if old else None) == (new.version if new else None):
                continue
            origin = _presence(asset, before, after) or causes.get(asset, ())
            found = _AssetChanges(self._samples(old, False), self._samples(new, True))
            upstream = changed.get(BY_ASSET[asset].source or "")
            for sample_id, change in found.changes():
                found.why[sample_id] = (
                    upstream.why[sample_id]
                    if upstream is not None and found.passes_on(sample_id, change, upstream)
                    else _why(change, losses[0].of(asset, sample_id), losses[1].of(asset, sample_id), origin)
                )
            changed[asset] = found
        assets_of: dict[tuple[str, str, _Why], list[str]] = {}
        for asset, found in changed.items():
            for sample_id, change in found.changes():
                assets_of.setdefault((sample_id, change, found.why[sample_id]), []).append(asset)
        return [
            Difference(change, partition, sample_id, tuple(assets), *why)
            for (sample_id, change, why), assets in sorted(assets_of.items())
        ]

    def _samples(self, state: OutputState | None, is_after: bool) -> dict[str, bytes]:
        if state is None:
            return {}
        for store in self._after if is_after else self._before:
            if (samples := store.samples(state.version)) is not None:
                return samples
        raise DataError(
            f"{state.asset}, shard {state.partition!r}: the samples of data version {state.version} are not "
            "known: the output was made again meanwhile, or a file below versions/samples was removed"
        )


class _Losses:
    """Lost items of a partition, by asset and sample; those of its inputs count for an asset, too."""

    def __init__(self, group: Group, stores: Sequence[SampleStore]) -> None:
        self._group, self._stores = group, stores
        self._by_asset: dict[str, Mapping[str, frozenset[Loss]]] = {}

    def of(self, asset: str, sample_id: str) -> frozenset[Loss]:
        found: frozenset[Loss] = frozenset()
        next_asset: str | None = asset
        while next_asset is not None:
            if next_asset not in self._by_asset:
                self._by_asset[next_asset] = self._read(self._group.get(next_asset))
            found |= self._by_asset[next_asset].get(sample_id, frozenset())
            next_asset = BY_ASSET[next_asset].source
        return found

    def _read(self, state: OutputState | None) -> dict[str, frozenset[Loss]]:
        if state is None or not state.losses:
            return {}
        for store in self._stores:
            if (table := store.losses(state.losses)) is not None:
                break
        else:
            raise DataError(
                f"{state.asset}, shard {state.partition!r}: its lost items are not known: the output was "
                "made again meanwhile, or a file below versions/losses was removed"
            )
        found: dict[str, set[Loss]] = {}
        rows = table.select(_LOSS_COLUMNS).filter(pc.field("is_cause") & pc.field("sample_id").is_valid())
        for row in rows.to_pylist():
            loss = (row["position"], row["outcome"], row["kind"])
            found.setdefault(row["sample_id"], set()).add(loss)
        return {sample_id: frozenset(losses) for sample_id, losses in found.items()}


class _AssetChanges:
    """Samples of a partition of one asset in both states: sample id -> digest."""

    def __init__(self, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> None:
        self.old, self.new = old, new
        self.why: dict[str, _Why] = {}

    def changes(self) -> Iterator[tuple[str, str]]:
        """Yield each sample that differs, and how."""
        for sample_id in sorted(self.old.keys() | self.new.keys()):
            if sample_id not in self.new:
                yield sample_id, DROPPED
            elif sample_id not in self.old:
                yield sample_id, ADDED
            elif self.old[sample_id] != self.new[sample_id]:
                yield sample_id, CHANGED

    def passes_on(self, sample_id: str, change: str, upstream: _AssetChanges) -> bool:
        """Return whether the sample differs because it does in what the asset is made from, and only so."""
        if change == DROPPED:
            return sample_id in upstream.old and sample_id not in upstream.new
        if change == ADDED:
            return sample_id in upstream.new and sample_id not in upstream.old
        return all(
            mine[sample_id] == theirs.get(sample_id)
            for mine, theirs in ((self.old, upstream.old), (self.new, upstream.new))
        )


def _why(change: str, before: frozenset[Loss], after: frozenset[Loss], origin: tuple[str, ...]) -> _Why:
    losses = list(_loss_reasons(change, before, after))
    text = "; ".join([*(text for _, text in losses), *origin]) or "made again with another result"
    return tuple(dict.fromkeys(reason for reason, _ in losses)) or origin or (text,), text


def _presence(asset: str, before: Group, after: Group) -> tuple[str, ...]:
    """Return the reason where the partition is in one state alone; nothing where it is in both."""
    if asset in before and asset in after:
        return ()
    if not any(other in before for other in BY_ASSET):
        return ("shard added",)
    if not any(other in after for other in BY_ASSET):
        return ("shard removed",)
    return ("made for the first time",) if asset in after else ("output removed",)


def _loss_reasons(change: str, before: frozenset[Loss], after: frozenset[Loss]) -> Iterator[tuple[str, str]]:
    """Yield reason and text for items that are lost now or are no longer.

    What is no longer lost does not drop a sample, and what is lost does not add one. An item that is lost in
    both states, by whatever, does not change one.
    """
    in_both = _lost(before) & _lost(after) if change == CHANGED else set()
    lost, found = (
        frozenset(loss for loss in losses if loss[0] not in in_both or loss[1] == "flagged")
        for losses in (after - before, before - after)
    )
    for losses, words, silent in ((lost, "", ADDED), (found, "no longer ", DROPPED)):
        if change == silent:
            continue
        positions: dict[tuple[str, str], list[int]] = {}
        for position, outcome, kind in losses:
            positions.setdefault((outcome, kind), []).extend([] if position is None else [position])
        for (outcome, kind), at in sorted(positions.items()):
            by_filter = outcome in ("filtered", "flagged")
            reason = f"{words}{outcome} by {kind}" if by_filter else f"{words}{outcome}: {kind}"
            yield reason, f"{_at(sorted(at))}{reason}"


def _lost(losses: frozenset[Loss]) -> set[int]:
    """Return the positions of items that are not there."""
    return {position for position, outcome, _ in losses if outcome != "flagged" and position is not None}


def _at(positions: list[int]) -> str:
    items = [position for position in positions if position >= 0]
    if not items:
        return ""
    more = f" and {len(items) - _POSITIONS} more" if len(items) > _POSITIONS else ""
    word = "position" if len(items) == 1 else "positions"
    return f"{word} {', '.join(map(str, items[:_POSITIONS]))}{more} "


class Diff:
    """Differences between two states, each a tag or ``now``, in sorted order of partitions and samples.

    A context manager: what is read of the current state stays in a temporary folder until its end.

    Raises:
        FileNotFoundError: there is no such tag.
    """

    def __init__(self, root: str, before: str, after: str, pool: WorkerPool) -> None:
        self._root, self._pool = root, pool
        self._names = (before, after)
        self._tags = [Manifest(root, name) if name != NOW else None for name in self._names]
        self._stack = ExitStack()

    def __enter__(self) -> Diff:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mm-assets-"))
        self._folder = folder
        self._scratch = SampleStore(folder)
        self._kept = SampleStore(join(self._root, FOLDER))
        self._stores = [[self._kept] if name != NOW else [self._kept, self._scratch] for name in self._names]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def partitions(self) -> Iterator[tuple[str, Group, Group, list[Difference]]]:
        """Yield each partition that differs: its states in both, and its differing samples."""
        if NOW in self._names:
            self._capture_current()
        comparison = Comparison(*self._stores)
        for partition, before, after in self._pairs():
            if _differs(before, after):
                yield partition, before, after, comparison.differences(partition, before, after)

    def _pairs(self) -> Iterator[tuple[str, Group, Group]]:
        left, right = (
            CurrentState(self._root).groups() if tag is None else tag.groups() for tag in self._tags
        )
        return merged(left, right)

    def _capture_current(self) -> None:
        """Read sample digests and lost items of the outputs that are not those of the tag."""
        for _, answer in self._pool.map(capture, self._unknown()):
            if isinstance(answer, WorkerFailure):
                raise DataError(str(answer))

    def _unknown(self) -> Iterator[CaptureJob]:
        ledger = Ledger(self._root)
        is_now_first = self._names[0] == NOW
        for partition, before, after in self._pairs():
            now, tagged = (before, after) if is_now_first else (after, before)
            if not _differs(now, tagged):
                continue
            records = {
                state.asset: record
                for state in now.values()
                for record in ledger.records(state.asset, [partition]).values()
            }
            for record in records.values():
                self._scratch.copy_losses(ledger, record)
            changed = [
                state.asset
                for state in now.values()
                if state.has_rows
                and (state.asset not in tagged or tagged[state.asset].version != state.version)
                and not self._kept.has(state.version)
            ]
            found = [records[asset] for asset in changed if asset in records]
            if found:
                yield CaptureJob(self._root, found, self._folder, reads_files=False)


def _differs(before: Group, after: Group) -> bool:
    assets = before.keys() | after.keys()
    return any(
        (before[asset].version if asset in before else None)
        != (after[asset].version if asset in after else None)
        for asset in assets
    )
