"""Assets for training and search, made from filtered Parquet."""

from mm_assets.assets.columns import row_columns
from mm_assets.checks.plugin_checks import with_plugins
from mm_assets.io_managers.check_results import ROW_CHECKS
from mm_assets.io_managers.sharded import sharded
from mm_assets.io_managers.shards import Plan, ShardSet
from mm_assets.partitions import LANCE_POOL


@sharded(
    code_version="2",
    checks=with_plugins("final_tars", ROW_CHECKS),
    io_manager_key="webdataset_io_manager",
    group_name="deliver",
    kinds={"webdataset"},
    metadata=row_columns("filtered_parquet"),
    description=(
        "WebDataset tars that open in webdataset, wids, Energon, Hugging Face datasets and NeMo Curator."
    ),
)
def final_tars(filtered_parquet: ShardSet) -> Plan:
    return Plan(filtered_parquet)


@sharded(
    code_version="2",
    checks=with_plugins("lance_table", ROW_CHECKS),
    io_manager_key="lance_io_manager",
    pool=LANCE_POOL,
    group_name="deliver",
    kinds={"lance"},
    metadata=row_columns("filtered_parquet"),
    description="One Lance table of all shards, indexed by sample id and modality.",
)
def lance_table(filtered_parquet: ShardSet) -> Plan:
    return Plan(filtered_parquet)


@sharded(
    code_version="1",
    checks=with_plugins("arrow_cache", ROW_CHECKS),
    io_manager_key="arrow_cache_io_manager",
    group_name="deliver",
    kinds={"arrow"},
    metadata=row_columns("filtered_parquet"),
    description="Memory-mapped Arrow files of whole samples: any of them at once, for training.",
)
def arrow_cache(filtered_parquet: ShardSet) -> Plan:
    return Plan(filtered_parquet)
