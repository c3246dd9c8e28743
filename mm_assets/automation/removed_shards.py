"""Outcome of the check `present` of the raw shards: which of those that have a partition are gone."""

from collections.abc import Iterable, Sequence

import dagster as dg

from mm_assets.formats.raw_shards import Listing
from mm_assets.interleaved.counted import counted
from mm_assets.io_managers.metadata import metadata_values
from mm_assets.io_managers.raw import RAW_SHARDS

PRESENT = dg.AssetCheckKey(RAW_SHARDS, "present")
_LISTED = 50


def removed_shards(known: Iterable[str], listing: Listing) -> list[str]:
    """Return partitions whose raw shards are gone, sorted; none while a location cannot be listed."""
    return [] if listing.unmatched else sorted(set(known).difference(listing))


def presence(removed: Sequence[str]) -> dg.AssetCheckEvaluation:
    """Return the outcome of the check.

    Args:
        removed: partitions whose raw shards are gone, sorted.
    """
    summary = (
        counted(len(removed), "raw shard is gone", "raw shards are gone")
        + "; mm-assets retire removes the outputs"
        if removed
        else ""
    )
    metadata = {"removed": len(removed), "shards": {"json": list(removed[:_LISTED])}, "summary": summary}
    return dg.AssetCheckEvaluation(
        asset_key=PRESENT.asset_key,
        check_name=PRESENT.name,
        passed=not removed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata=metadata_values(metadata),
        blocking=False,
    )
