"""Asset `overview`: what is in the data set, in figures and pictures."""

import dagster as dg

from mm_assets.assets.curation import filtered_parquet

OVERVIEW = dg.AssetKey("overview")

# Not materializable: a backfill of all assets would then have a step without partitions, and one bad shard
# keeps that from running. The sensor of the same name writes it.
overview = dg.AssetSpec(
    OVERVIEW,
    deps=[filtered_parquet],
    group_name="deliver",
    kinds={"dashboard"},
    description=(
        "What is in the data set: figures and plots below, more thumbnails of kept and dropped images on the "
        "[Events page](/assets/overview?view=events). The sensor `overview` renews it after each backfill."
    ),
)
