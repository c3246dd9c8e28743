"""History of a sample: the shards it came from, and the fate of each of its items in every output."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.accounts import Ledger
from mm_assets.accounting.canonical import Rows, SampleQuery
from mm_assets.accounting.formats import accounted_format, find_sample
from mm_assets.accounting.ledger import locator_columns
from mm_assets.accounting.lookup import in_accounts
from mm_assets.accounting.record import OUTPUTS, Output
from mm_assets.accounting.survey_store import SurveyStore
from mm_assets.model.schema import MODALITIES
from mm_assets.storage.files import StorageOptions, exists, join

Locator = tuple[Any, ...]  # source, member, byte offset, byte size, frame; each may be None

ABSENT = "absent"
NOT_MADE = "not made"
FLAGGED = "flagged"  # outcome of a row of the ledger whose item is kept
_LOCATOR = ("source", "member", "byte_offset", "byte_size", "frame_index")


@dataclass
class ItemHistory:
    """One item of a shard, with its fate in each asset, and what the ledger says of it, as rows."""

    position: int
    modality: str
    locator: Locator
    fates: dict[str, str] = field(default_factory=dict)
    records: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass
class ShardHistory:
    """The items of a sample in one shard.

    ``partition`` is None in a Lance table that does not record it.
    """

    partition: str | None
    items: list[ItemHistory] = field(default_factory=list)

    @property
    def locator(self) -> Locator:
        """Locator of the sample's first item that has one."""
        return next((item.locator for item in self.items if any(item.locator)), (None,) * len(_LOCATOR))

    def note(self, asset: str, row: Mapping[str, Any], fate: str) -> ItemHistory:
        """Record the fate of an item in an asset, and return the item.

        Two items of one position are told apart by their locators: a sample id may occur twice.
        """
        locator = tuple(row[name] for name in _LOCATOR)
        open_items = [
            i
            for i in self.items
            if (i.position, i.modality) == (row["position"], row["modality"]) and asset not in i.fates
        ]
        known = next((i for i in open_items if i.locator == locator), None)
        known = known or next((i for i in open_items if not any(i.locator) or not any(locator)), None)
        if known is None:
            known = ItemHistory(row["position"], row["modality"], locator)
            self.items.append(known)
        elif not any(known.locator):
            known.locator = locator
        known.fates[asset] = fate
        return known

    def flag(self, asset: str, row: Mapping[str, Any]) -> None:
        """Record that a filter marked an item that is kept."""
        locator = tuple(row[name] for name in _LOCATOR)
        kept = [i for i in self.items if (i.position, i.modality) == (row["position"], row["modality"])]
        flagged = next((i for i in kept if i.locator == locator), kept[0] if kept else None)
        if flagged is None:  # the output is gone
            flagged = self.note(asset, row, _loss(row))
        else:
            flagged.fates[asset] = f"{flagged.fates.get(asset, ABSENT)}; {_loss(row)}"
        flagged.records.append(row)


def history_of(root: str, sample_id: str, options: StorageOptions | None = None) -> list[ShardHistory]:
    """Return the history of a sample in each shard that has or had it; none for an unknown id.

    It is read from the outputs and the ledger below a storage root. The cost is a read of the footer of every
    Parquet file and account. Tars and caches are opened only for shards found there, and the Lance table is
    queried by its index. No image is read.
    """
    ledger = Ledger(root, options)
    lost = {output.asset: _lost(ledger, output.asset, sample_id, options) for output in OUTPUTS}
    kept = _kept(root, sample_id, {row["partition"] for rows in lost.values() for row in rows}, options)
    shards: dict[str | None, ShardHistory] = {}
    for asset, by_partition in kept.items():
        for partition, rows in by_partition.items():
            for row in rows:
                error = row["materialize_error"]
                fate = f"kept with an error: {error}" if error else "kept"
                shards.setdefault(partition, ShardHistory(partition)).note(
                    asset, row | locator_columns(row["source_ref"]), fate
                )
    for asset, rows in lost.items():
        for row in rows:
            shard = shards.setdefault(row["partition"], ShardHistory(row["partition"]))
            if row["outcome"] == FLAGGED:
                shard.flag(asset, row)
            else:
                shard.note(asset, row, _loss(row)).records.append(row)
    for shard in shards.values():
        for output in OUTPUTS:
            fate = ABSENT if _is_made(root, output, shard.partition, ledger, options) else NOT_MADE
            for item in shard.items:
                item.fates.setdefault(output.asset, fate)
        shard.items.sort(key=_order)
    return [shards[name] for name in sorted(shards, key=lambda name: (name is None, name))]


def _lost(ledger: Ledger, asset: str, sample_id: str, options: StorageOptions | None) -> Rows:
    """Return rows of the sample among the lost items of an asset."""
    accounts, *earlier = ledger.item_folders(asset)
    found = in_accounts(accounts, sample_id, options)
    rows = [row for of_partition in found.values() for row in of_partition]
    for folder in earlier:
        for of_partition in in_accounts(folder, sample_id, options).values():
            # A run that was killed may have left both.
            replaced = exists(ledger.uri(asset, of_partition[0]["partition"]), options)
            rows += [] if replaced else of_partition
    return rows


def _kept(
    root: str, sample_id: str, lost_in: Set[str], options: StorageOptions | None
) -> dict[str, Mapping[str | None, Rows]]:
    """Return rows of the sample by asset and partition, first from formats that need no partitions."""
    kept: dict[str, Mapping[str | None, Rows]] = {}
    partitions = set(lost_in)
    for output in sorted(OUTPUTS, key=lambda output: not accounted_format(output.kind).finds_partitions):
        query = SampleQuery(
            join(root, output.folder), partial(output.uri, root), sample_id, sorted(partitions), options
        )
        kept[output.asset] = find_sample(output.kind, query)
        partitions |= {name for name in kept[output.asset] if name is not None}
    return kept


def place_of(locator: Locator) -> str:
    """Return member, bytes and frame of a locator in words, as far as known."""
    _, member, offset, size, frame = locator
    parts = [member] if member else []
    if offset is not None:
        parts.append(f"@{offset}" if size is None else f"@{offset}+{size}")
    if frame is not None:
        parts.append(f"frame {frame}")
    return " ".join(parts)


def origin_of(locator: Locator) -> str:
    """Return the file of a locator, and the place in it, in words."""
    return f"{locator[0]}: {place_of(locator)}" if locator[0] else "an unknown source"


def surveyed_in(root: str, sample_id: str, options: StorageOptions | None = None) -> list[str]:
    """Return the raw shards whose survey has a sample, published or not."""
    surveys = SurveyStore(root, options)
    target = pa.scalar(sample_id)
    return [
        partition
        for partition, ids in surveys.sample_ids(surveys.partitions())
        if pc.index(ids, target).as_py() >= 0
    ]


def _loss(row: Mapping[str, Any]) -> str:
    if row["outcome"] == "quarantined":
        return f"quarantined: {row['kind']}: {row['reason']}"
    score = "" if row["score"] is None else f" (score {row['score']:g}, asked for {row['threshold']})"
    verb = "flagged" if row["outcome"] == FLAGGED else "filtered"
    return f"{verb} by {row['kind']}: {row['reason']}{score}"


def _is_made(
    root: str, output: Output, partition: str | None, ledger: Ledger, options: StorageOptions | None
) -> bool:
    """Return whether an asset was made from a shard, even if nothing of it was left to write."""
    if partition is None:
        return True
    return any(
        exists(uri, options) for uri in (*ledger.uris(output.asset, partition), output.uri(root, partition))
    )


def _order(item: ItemHistory) -> tuple[int, int, int]:
    return item.position, MODALITIES.index(item.modality), item.locator[2] or -1
