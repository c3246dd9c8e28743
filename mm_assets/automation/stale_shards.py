"""Outcome of the check `up_to_date` of an asset: which of its shards are stale.

Dagster calls a partition unsynced only on its own page: of a partitioned asset as a whole it always says that
it is fresh, and of an asset two steps behind a changed one, too. So this check tells it, for each asset.
"""

from collections.abc import Mapping

import dagster as dg

from mm_assets.automation.due_shards import STALE, Due
from mm_assets.interleaved.counted import counted
from mm_assets.io_managers.metadata import metadata_values

UP_TO_DATE = "up_to_date"
_LISTED = 50
_REASONS = 3  # in the summary


def staleness(asset: dg.AssetKey, due: Mapping[str, Due]) -> dg.AssetCheckEvaluation:
    """Return the outcome of the check.

    Args:
        due: what is due of the asset.
    """
    stale = {key: why.reason for key, why in due.items() if why.kind == STALE}
    reasons = sorted(set(stale.values()))
    summary = (
        f"{counted(len(stale), 'shard is stale', 'shards are stale')}: {', '.join(reasons[:_REASONS])}"
        if stale
        else ""
    )
    listed = dict(sorted(stale.items())[:_LISTED])
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=UP_TO_DATE,
        passed=not stale,
        severity=dg.AssetCheckSeverity.WARN,
        metadata=metadata_values({"stale": len(stale), "shards": {"json": listed}, "summary": summary}),
        blocking=False,
    )
