"""The code location: assets, their checks, jobs, sensors and resources."""

import dagster as dg

from mm_assets.assets.curation import curated_parquet, filtered_parquet, image_scores
from mm_assets.assets.delivery import final_tars, lance_table
from mm_assets.assets.raw_shards import raw_shards
from mm_assets.io_managers.sharded import landed_checks
from mm_assets.resources.environment import resources_from_environment
from mm_assets.sensors import new_shards

SHARDED_ASSETS = [curated_parquet, image_scores, filtered_parquet, final_tars, lance_table]


def build_definitions() -> dg.Definitions:
    """The definitions for the environment as it is now (see `resources_from_environment`)."""
    return dg.Definitions(
        assets=[raw_shards, *SHARDED_ASSETS],
        asset_checks=landed_checks(SHARDED_ASSETS),
        jobs=[dg.define_asset_job("all_assets")],
        sensors=[new_shards],
        resources=resources_from_environment(),
        # One process orchestrates, its workers do the work: only so do the assets of a run share them.
        executor=dg.in_process_executor,
    )


defs = build_definitions()
