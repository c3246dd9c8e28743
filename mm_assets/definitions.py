"""The code location: assets, their checks, jobs, sensors and resources."""

from mm_assets.interleaved.extras import explained

try:
    import dagster as dg
except ImportError as error:
    raise explained(error) from None

from mm_assets.assets.curation import (
    curated_parquet,
    filtered_parquet,
    image_scores,
    quarantine,
    sample_scores,
)
from mm_assets.assets.delivery import arrow_cache, final_tars, lance_table
from mm_assets.assets.described import described
from mm_assets.assets.overview import overview
from mm_assets.assets.raw_shards import raw_shards
from mm_assets.automation.alerts.sensor import alerts_sensor
from mm_assets.automation.inventory_checks import inventory_checks
from mm_assets.automation.jobs import JOBS
from mm_assets.automation.new_shards import new_shards
from mm_assets.automation.overview import overview_sensor
from mm_assets.automation.schedules import schedules
from mm_assets.automation.sensor import automation_sensor
from mm_assets.checks.raw_gate import raw_gate_checks
from mm_assets.checks.zero_loss import zero_loss_checks
from mm_assets.io_managers.sharded import landed_checks, with_settings
from mm_assets.resources.environment import resources_from_environment
from mm_assets.settings import Settings

SHARDED_ASSETS = [
    curated_parquet,
    quarantine,
    image_scores,
    sample_scores,
    filtered_parquet,
    final_tars,
    lance_table,
    arrow_cache,
]


def build_definitions() -> dg.Definitions:
    """The definitions for the environment as it is now (see `resources_from_environment`)."""
    settings, resources = Settings.load(), resources_from_environment()
    return dg.Definitions(
        assets=[
            raw_shards,
            overview.merge_attributes(owners=settings.owners),
            *(
                described(with_settings(asset, resources), resources["maintained"].root, settings.owners)
                for asset in SHARDED_ASSETS
            ),
        ],
        asset_checks=[
            raw_gate_checks(),
            *landed_checks(SHARDED_ASSETS),
            *zero_loss_checks(),
            inventory_checks(SHARDED_ASSETS),
        ],
        jobs=JOBS,
        sensors=[
            new_shards,
            overview_sensor,
            automation_sensor(settings.automation),
            alerts_sensor(settings),
        ],
        schedules=schedules(settings),
        resources=resources,
        # One process orchestrates, its workers do the work: only so do the assets of a run share them.
        executor=dg.in_process_executor,
    )


defs = build_definitions()
