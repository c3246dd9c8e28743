"""Differences between two states of the outputs: samples added, dropped and changed, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from mm_assets.accounting.history import FLAGGED
from mm_assets.accounting.outputs import BY_ASSET
from mm_assets.interleaved.errors import DataError
from mm_assets.versions.causes import causes_of
from mm_assets.versions.output_state import Group, OutputState
from mm_assets.versions.sample_store import SampleStore

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
        frozenset(loss for loss in losses if loss[0] not in in_both or loss[1] == FLAGGED)
        for losses in (after - before, before - after)
    )
    for losses, words, silent in ((lost, "", ADDED), (found, "no longer ", DROPPED)):
        if change == silent:
            continue
        positions: dict[tuple[str, str], list[int]] = {}
        for position, outcome, kind in losses:
            positions.setdefault((outcome, kind), []).extend([] if position is None else [position])
        for (outcome, kind), at in sorted(positions.items()):
            by_filter = outcome in ("filtered", FLAGGED)
            reason = f"{words}{outcome} by {kind}" if by_filter else f"{words}{outcome}: {kind}"
            yield reason, f"{_at(sorted(at))}{reason}"


def _lost(losses: frozenset[Loss]) -> set[int]:
    """Return the positions of items that are not there."""
    return {position for position, outcome, _ in losses if outcome != FLAGGED and position is not None}


def _at(positions: list[int]) -> str:
    items = [position for position in positions if position >= 0]
    if not items:
        return ""
    more = f" and {len(items) - _POSITIONS} more" if len(items) > _POSITIONS else ""
    word = "position" if len(items) == 1 else "positions"
    return f"{word} {', '.join(map(str, items[:_POSITIONS]))}{more} "
