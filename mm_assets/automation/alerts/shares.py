"""Shares of items by run: how many a filter keeps, how many are lost to quarantine.

Kept up from tick to tick: only materializations that are new are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import dagster as dg

from mm_assets.automation.alerts.cause import Cause, Kind
from mm_assets.automation.alerts.view import View
from mm_assets.interleaved.counted import counted
from mm_assets.io_managers.shard_work import LOSS_SHARE, LOSS_SHARE_OF

FILTERED, CURATED = dg.AssetKey("filtered_parquet"), dg.AssetKey("curated_parquet")

COMPARED_RUNS = 20
_FEWEST_RUNS = 5  # with fewer, nothing is known of what is usual
_DEVIATIONS = 3.0
_SMALLEST = 0.02  # a difference below is none, however steady the share was so far

_PAGE, _PAGES = 500, 4  # materializations read in one tick
_ORIGINS = 5  # backfills, or runs, that are kept apart


@dataclass
class OriginShare:
    """Items of one backfill or run.

    Args:
        part: items kept, or lost.
        whole: all items.
        above: shards of which a larger share is lost than is allowed.
        before: shares of the runs before it, that of the latest last.
    """

    part: float = 0.0
    whole: float = 0.0
    above: int = 0
    before: list[float] = field(default_factory=list)


@dataclass
class Shares:
    """Shares of the latest runs of one asset.

    Args:
        cursor: storage id of the last materialization that has been read.
        runs: the latest runs, each as id, backfill or run it belongs to, part and whole.
        origins: the latest backfills or runs by id.
    """

    cursor: int | None = None
    runs: list[list[Any]] = field(default_factory=list)
    origins: dict[str, OriginShare] = field(default_factory=dict)

    @classmethod
    def stored(cls, values: Mapping[str, Any] | None) -> Shares:
        """Return them from the values of `plain`."""
        if not values:
            return cls()
        origins = {key: OriginShare(**share) for key, share in values["origins"].items()}
        return cls(values["cursor"], values["runs"], origins)

    def plain(self) -> dict[str, Any]:
        """Return plain values to be stored."""
        return asdict(self)

    def read(self, view: View, asset: dg.AssetKey, limit: float = 1.0) -> None:
        """Add the materializations since the last call; the first one begins with the latest.

        Args:
            limit: share of a shard that may be lost.
        """
        for record in self._new_records(view.instance, asset):
            event = record.asset_materialization
            self.cursor = record.storage_id
            found = _items(event.metadata) if event and "unchanged" not in event.metadata else None
            if found is None or not found[1]:
                continue
            part, whole = found
            run = view.runs([record.run_id]).get(record.run_id)
            self._add(record.run_id, view.origin(run).id if run else record.run_id, part, whole)
            self.origins[self.runs[-1][1]].above += part / whole > limit

    def _add(self, run_id: str, origin: str, part: float, whole: float) -> None:
        if origin not in self.origins:
            before = [run[2] / run[3] for run in self.runs if run[1] != origin]
            self.origins[origin] = OriginShare(before=before[-COMPARED_RUNS:])
        share = self.origins.pop(origin)
        share.part, share.whole = share.part + part, share.whole + whole
        self.origins[origin] = share  # the latest last
        self.origins = dict(list(self.origins.items())[-_ORIGINS:])
        position = next((n for n, run in enumerate(self.runs) if run[0] == run_id), None)
        run: list[Any] = [run_id, origin, 0.0, 0.0] if position is None else self.runs.pop(position)
        self.runs = [*self.runs, [run_id, origin, run[2] + part, run[3] + whole]][-2 * COMPARED_RUNS :]

    def _new_records(self, instance: dg.DagsterInstance, asset: dg.AssetKey) -> list[dg.EventLogRecord]:
        if self.cursor is None:
            latest = instance.fetch_materializations(asset, limit=_PAGE).records
            return list(reversed(latest))
        records: list[dg.EventLogRecord] = []
        cursor = self.cursor
        for _ in range(_PAGES):
            wanted = dg.AssetRecordsFilter(asset, after_storage_id=cursor)
            page = instance.fetch_materializations(wanted, limit=_PAGE, ascending=True).records
            records += page
            if len(page) < _PAGE:
                break
            cursor = page[-1].storage_id
        return records


def drift(view: View, kept: Shares) -> list[Cause]:
    """Return a cause if the latest backfill or run keeps another share of items than the runs before it.

    Usual is the median of the last 20 runs before. Another share is one that is farther from it than three
    times the spread of these runs (the median absolute deviation, scaled to a standard deviation), and than
    two percentage points. Single odd runs bend neither.
    """
    origin, share = _latest(kept)
    if share is None or len(share.before) < _FEWEST_RUNS:
        return []
    usual = median(share.before)
    spread = 1.4826 * median(abs(other - usual) for other in share.before)
    allowed = max(_DEVIATIONS * spread, _SMALLEST)
    now = share.part / share.whole
    if abs(now - usual) <= allowed:
        return []
    figures = {
        "kept": f"{now:.1%} of {counted(round(share.whole), 'item')}",
        "usual": f"{usual:.1%} (median of {len(share.before)} runs), {allowed:.1%} more or less",
    }
    return [Cause(Kind.DRIFT, FILTERED.to_user_string(), origin=_origin(view, origin), figures=figures)]


def loss(view: View, lost: Shares, most: float) -> list[Cause]:
    """Return a cause if the latest backfill or run lost a larger share of items than ``most``, or shards did.

    A shard that loses more does not land, so this is about data that were made under another MM_MAX_LOSS, or
    that count as lost for another reason.
    """
    origin, share = _latest(lost)
    if share is None or not (share.above or share.part / share.whole > most):
        return []
    figures = {
        "lost": f"{share.part / share.whole:.1%} of {counted(round(share.whole), 'item')}",
        "MM_MAX_LOSS": f"{most:g}",
    }
    return [
        Cause(
            Kind.LOSS,
            CURATED.to_user_string(),
            origin=_origin(view, origin),
            shards=share.above,
            figures=figures,
        )
    ]


def _latest(shares: Shares) -> tuple[str, OriginShare | None]:
    return next(reversed(shares.origins.items()), ("", None))


def _origin(view: View, origin_id: str) -> Any:
    run = view.runs([origin_id]).get(origin_id)
    return view.origin(run) if run else view.backfill(origin_id)


def _items(metadata: Mapping[str, dg.MetadataValue]) -> tuple[float, float] | None:
    """Return the items kept, or lost, and all of them; None where an event says neither."""

    def number(name: str) -> float | None:
        value = metadata[name].value if name in metadata else None
        return float(value) if isinstance(value, int | float) else None

    share, of = number(LOSS_SHARE), number(LOSS_SHARE_OF)
    if share is not None and of is not None:
        return share * of, of
    rows, items = number("dagster/partition_row_count"), number("items_in")
    return (rows, items) if rows is not None and items is not None else None
