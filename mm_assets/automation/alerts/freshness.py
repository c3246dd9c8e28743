"""Assets of which no shard has been materialized for too long."""

from __future__ import annotations

from mm_assets.automation.alerts.cause import NAMED, Cause, Kind
from mm_assets.automation.alerts.view import View


def stale_assets(view: View, within: float, since: float) -> list[Cause]:
    """Return one cause that names the assets without a materialization in the last ``within`` seconds.

    Args:
        since: when the alerts began, in seconds since 1970; an asset that was never materialized is stale
            ``within`` seconds later.
    """
    assets = sorted(view.repository.asset_graph.materializable_asset_keys)
    last: dict[str, float | None] = {asset.to_user_string(): None for asset in assets}
    for record in view.instance.get_asset_records(assets):
        entry = record.asset_entry
        if entry.last_materialization is not None:
            last[entry.asset_key.to_user_string()] = entry.last_materialization.timestamp
    stale = {
        asset: f"last materialized {(view.now - moment) / 3600:.1f} hours ago"
        if moment
        else "never materialized"
        for asset, moment in last.items()
        if view.now - (moment or since) > within
    }
    if not stale:
        return []
    figures = {"assets": f"{len(stale)} of {len(assets)}", "MM_FRESH_WITHIN": f"{within / 3600:g} hours"}
    return [Cause(Kind.STALE, "assets", names=dict(list(stale.items())[:NAMED]), figures=figures)]
