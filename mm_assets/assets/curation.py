"""Assets of the curation: raw shards to filtered Parquet."""

from mm_assets.assets.columns import row_columns, sample_score_columns, score_columns
from mm_assets.checks.plugin_checks import with_plugins
from mm_assets.filters.filter_chain import SAMPLE_SCORES, SCORES
from mm_assets.filters.readable import ReadableImages
from mm_assets.io_managers.check_results import (
    INGEST_CHECKS,
    QUARANTINE_CHECKS,
    ROW_CHECKS,
    SCORE_CHECKS,
)
from mm_assets.io_managers.quarantine import RAW
from mm_assets.io_managers.sharded import sharded
from mm_assets.io_managers.shards import Plan, ShardSet
from mm_assets.resources.filter_thresholds import FilterThresholds
from mm_assets.resources.image_validation import ImageValidation


@sharded(
    code_version="3",
    checks=with_plugins("curated_parquet", INGEST_CHECKS),
    io_manager_key="ingest_io_manager",
    group_name="ingest",
    kinds={"parquet"},
    metadata=row_columns(),
    description="Every item of the raw shards as one Parquet row: text, metadata, image bytes.",
)
def curated_parquet(raw_shards: ShardSet, looks: ImageValidation) -> Plan:
    return Plan(raw_shards, (ReadableImages(looks.decode_fraction, looks.max_pixels),))


@sharded(
    code_version="1",
    checks=QUARANTINE_CHECKS,
    io_manager_key="quarantine_io_manager",
    group_name="quality",
    kinds={"parquet"},
    description=(
        "What could not be read, with its class, its place and its raw bytes. "
        "Mend the raw shard, and its records close."
    ),
)
def quarantine(curated_parquet: ShardSet, raw_shards: ShardSet) -> Plan:
    return Plan(curated_parquet, side_inputs={RAW: raw_shards})


@sharded(
    code_version="2",
    checks=SCORE_CHECKS,
    io_manager_key="scores_io_manager",
    group_name="quality",
    kinds={"parquet"},
    metadata=score_columns("curated_parquet"),
    description=(
        "Width, height, format and byte size of every image, from its header; "
        "and what filters or the setting `scores` ask for, such as sharpness."
    ),
)
def image_scores(curated_parquet: ShardSet, bounds: FilterThresholds) -> Plan:
    return Plan(curated_parquet, bounds.measures().images)


@sharded(
    code_version="1",
    io_manager_key="sample_scores_io_manager",
    group_name="quality",
    kinds={"parquet"},
    metadata=sample_score_columns("curated_parquet"),
    description=(
        "Images, texts and words of every sample; and what filters or the setting `scores` ask for, "
        "such as the language."
    ),
)
def sample_scores(curated_parquet: ShardSet, bounds: FilterThresholds) -> Plan:
    return Plan(curated_parquet, bounds.measures().samples)


@sharded(
    code_version="2",
    checks=with_plugins("filtered_parquet", ROW_CHECKS),
    io_manager_key="parquet_io_manager",
    group_name="curate",
    kinds={"parquet"},
    metadata=row_columns("curated_parquet"),
    description=(
        "Curated rows without the images and samples that the filters drop (none, where no bound is set); "
        "positions keep their gaps."
    ),
)
def filtered_parquet(
    curated_parquet: ShardSet, image_scores: ShardSet, sample_scores: ShardSet, bounds: FilterThresholds
) -> Plan:
    chain = bounds.chain()
    if chain is None or not chain.samples:
        steps = () if chain is None else (chain,)
        return Plan(curated_parquet, steps, side_inputs={SCORES: image_scores}, unread=(sample_scores,))
    scores = {SCORES: image_scores, SAMPLE_SCORES: sample_scores}
    return Plan(curated_parquet, (chain,), side_inputs=scores)
