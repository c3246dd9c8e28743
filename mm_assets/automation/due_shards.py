"""Shards that are due: partitions that are missing, failed or stale, with the reason of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import dagster as dg

MISSING, FAILED, STALE = "missing", "failed", "stale"


@dataclass(frozen=True)
class Due:
    """Why a partition should be made: ``kind`` is missing, failed or stale, ``reason`` a few words.

    Args:
        may_land: it failed, and may land now: what it is made from, the code or a setting has changed since,
            or its run was lost before it came to the partition.
        parent: the asset whose due partition is the reason; if that is not made, this one is not either.
        is_missing: it failed with its run, for no fault of its own, and was never made.
    """

    kind: str
    reason: str
    may_land: bool = False
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
        """Return the partitions that are due for a wanted reason, and what is due further on of them."""
        kept: dict[dg.AssetKey, dict[str, Due]] = {}
        for asset, due in self.by_asset.items():
            above = [kept[parent] for parent in self.parents[asset] if parent in kept]
            kept[asset] = {
                key: why
                for key, why in due.items()
                if any(key in parent for parent in above)
                or (is_wanted(why) and (why.parent is None or key in kept.get(why.parent, {})))
            }
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
