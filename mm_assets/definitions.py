"""The code location: assets, checks, the IO managers that do the work, and where everything is."""

import os

import dagster as dg

from mm_assets.assets.curation import curated_parquet, filtered_parquet, image_scores
from mm_assets.assets.delivery import final_tars, lance_table
from mm_assets.assets.raw_shards import raw_shards
from mm_assets.io_managers.lance import LanceIOManager
from mm_assets.io_managers.parquet import IngestIOManager, ParquetIOManager
from mm_assets.io_managers.raw import RawShardIOManager
from mm_assets.io_managers.scores import ScoresIOManager
from mm_assets.io_managers.sharded import landed_checks
from mm_assets.io_managers.webdataset import WebdatasetIOManager
from mm_assets.io_managers.workers import Workers
from mm_assets.partitions import SHARDS
from mm_assets.resources.filter_bounds import FilterBounds
from mm_assets.resources.raw_shards import RawShards
from mm_assets.sensors import new_shards

assets = [raw_shards, curated_parquet, image_scores, filtered_parquet, final_tars, lance_table]
raw = RawShards(locations=os.environ.get("MM_RAW_SHARDS", "demo/raw"))
workers = Workers(processes=int(os.environ.get("MM_WORKERS", "0")))
store = {"root": os.environ.get("MM_STORAGE", "demo/storage"), "workers": workers}
policy = {"on_materialize_error": os.environ.get("MM_ON_MATERIALIZE_ERROR", "error")}

defs = dg.Definitions(
    assets=assets,
    asset_checks=landed_checks(assets),
    jobs=[dg.define_asset_job("all_assets", partitions_def=SHARDS)],
    sensors=[new_shards],
    resources={
        "raw": raw,
        "workers": workers,
        "bounds": FilterBounds(
            min_aspect_ratio=float(os.environ.get("MM_MIN_ASPECT_RATIO", "1.0")),
            max_aspect_ratio=float(os.environ.get("MM_MAX_ASPECT_RATIO", "2.0")),
        ),
        "raw_io_manager": RawShardIOManager(raw=raw),
        "ingest_io_manager": IngestIOManager(raw=raw, **store, **policy),
        "scores_io_manager": ScoresIOManager(**store),
        "parquet_io_manager": ParquetIOManager(**store, **policy),
        "webdataset_io_manager": WebdatasetIOManager(**store, **policy),
        "lance_io_manager": LanceIOManager(**store, **policy),
    },
    # One process orchestrates, its workers do the work: only so do the assets of a run share them.
    executor=dg.in_process_executor,
)
