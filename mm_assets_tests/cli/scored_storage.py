"""A storage root with curated shards and their scores, and the records of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from mm_assets.accounting import (
    CURATED,
    DERIVED_FOLDERS,
    FILES,
    ShardRecord,
    digest_files,
)
from mm_assets.accounting.accounts import Ledger
from mm_assets.filters.measure import ImageMeasure, SampleMeasure
from mm_assets.filters.scores import score_samples, score_table
from mm_assets.formats.parquet import publish_table
from mm_assets_tests.cli.documents import sample
from mm_assets_tests.cli.storage_root import fill
from mm_assets_tests.formats.raw_tars import make_tar

SHARDS = ("a", "b", "sub/c")


def fill_scored(folder: Path) -> Path:
    """Three shards of two samples with a text, a 30x20 image and a 70x20 one; return the storage root."""
    for shard in SHARDS:
        name = shard.replace("/", "-")
        make_tar(folder / "raw" / f"{shard}.tar", [*sample(f"{name}-one"), *sample(f"{name}-two")])
    fill(str(folder / "storage"), str(folder / "raw"), assets=("curated_parquet",))
    score(folder / "storage", *SHARDS)
    return folder / "storage"


def score(
    root: Path | str,
    *shards: str,
    measures: Sequence[ImageMeasure] = (),
    sample_measures: Sequence[SampleMeasure] = (),
) -> None:
    """Store the scores of curated shards, with records of both."""
    for shard in shards:
        curated = CURATED.uri(str(root), shard)
        table = pq.read_table(curated)
        record(root, CURATED.asset, shard, "rows-1", {"raw_shards": "raw-1"})
        for asset, scores in (
            ("image_scores", score_table(table, measures)),
            ("sample_scores", score_samples(table, sample_measures)),
        ):
            uri = f"{root}/{DERIVED_FOLDERS[asset]}/{Path(curated).name}"
            publish_table(uri, scores)
            record(root, asset, shard, "scores-1", {CURATED.asset: "rows-1"}, uri)


def record(
    root: Path | str, asset: str, shard: str, version: str, inputs: Mapping[str, str], *files: str
) -> None:
    account = {"inputs": dict(inputs), FILES: digest_files(str(root), files)}
    Ledger(str(root)).write(ShardRecord(asset, shard, "", version, "", account=account))
