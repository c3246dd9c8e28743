"""From raw shards to filtered Parquet."""

from mm_assets.checks.row_checks import ROW_CHECKS
from mm_assets.filters.aspect_ratio import SCORES, AspectRatioFilter
from mm_assets.filters.readable import ReadableImages
from mm_assets.io_managers.sharded import ShardCheck, sharded
from mm_assets.io_managers.shards import Plan, ShardSet
from mm_assets.resources.filter_bounds import FilterBounds


@sharded(
    code_version="1",
    checks=ROW_CHECKS,
    io_manager_key="ingest_io_manager",
    group_name="interleaved",
    description="Every item of the raw shards as one Parquet row: text, metadata, image bytes.",
)
def curated_parquet(raw_shards: ShardSet) -> Plan:
    return Plan(raw_shards, (ReadableImages(),))


@sharded(
    code_version="1",
    checks=(ShardCheck("images_readable", "Every image has a readable header."),),
    io_manager_key="scores_io_manager",
    group_name="interleaved",
    description="Width, height, format and byte size of every image, from its header.",
)
def image_scores(curated_parquet: ShardSet) -> Plan:
    return Plan(curated_parquet)


@sharded(
    code_version="1",
    checks=ROW_CHECKS,
    io_manager_key="parquet_io_manager",
    group_name="interleaved",
    description="Curated rows without the images that the filters drop; positions keep their gaps.",
)
def filtered_parquet(curated_parquet: ShardSet, image_scores: ShardSet, bounds: FilterBounds) -> Plan:
    keep = AspectRatioFilter(bounds.min_aspect_ratio, bounds.max_aspect_ratio)
    return Plan(curated_parquet, (keep,), side={SCORES: image_scores})
