"""Jobs of the code location."""

from typing import Any

import dagster as dg

from mm_assets.automation.maintenance import maintenance
from mm_assets.automation.refresh import refresh
from mm_assets.checks.zero_loss import proof_keys

ALL_ASSETS = dg.define_asset_job("all_assets", description="Take shards through all assets and checks.")
PROVE = dg.define_asset_job(
    "prove", selection=dg.AssetSelection.checks(*proof_keys()), description="Read every output again."
)
JOBS: list[Any] = [ALL_ASSETS, PROVE, refresh, maintenance]
