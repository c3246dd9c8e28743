"""Observable source asset of the raw shards."""

import warnings

import dagster as dg

from mm_assets.io_managers.raw import RAW_SHARDS, observe_changes
from mm_assets.partitions import SHARDS
from mm_assets.resources.raw_shards import RawShards


def _observe(context: dg.OpExecutionContext, raw: RawShards) -> dg.DataVersionsByPartition:
    return observe_changes(context, RAW_SHARDS, raw.listing())


with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)  # reviewed, pinned, tested
    raw_shards = dg.observable_source_asset(
        name="raw_shards",
        partitions_def=SHARDS,
        io_manager_key="raw_io_manager",
        group_name="ingest",
        tags={"dagster/kind/webdataset": "", "dagster/kind/parquet": ""},  # it takes no `kinds`
        description=(
            "WebDataset or Parquet shards of interleaved documents. Observing them notes new and changed "
            "ones; data versions are etags, or size, time and a digest of both ends."
        ),
    )(_observe)
