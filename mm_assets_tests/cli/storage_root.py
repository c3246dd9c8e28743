"""A storage root as the graph leaves it, filled by the writers and the ledger alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mm_assets.accounting import Balance, ShardRecord, account_table
from mm_assets.accounting.accounts import Ledger
from mm_assets.filters.readable import ReadableImages
from mm_assets.filters.registry import AspectRatioFilter
from mm_assets.formats.names import partition_filename
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.model.samples import Step

ASSETS = ("curated_parquet", "filtered_parquet", "final_tars", "lance_table", "arrow_cache")


def fill(root: str, raw: str, assets: Sequence[str] = ASSETS, policy: str = "drop_sample") -> None:
    """Make some assets of the graph from a folder of raw shards; images from 1:1 to 2:1 pass the filter."""
    reader = reader_for("webdataset", raw, quarantine_errors=policy != "error", relative_to=raw)
    raws = {partition.name: partition.files[0] for partition in reader.partitions()}
    _make(root, "curated_parquet", reader, raws, ("parquet", "curated"), policy, [ReadableImages()])
    files = {name: f"{partition_filename(name)}.parquet" for name in raws}
    curated, filtered = (
        {name: f"{root}/{folder}/{file}" for name, file in files.items()}
        for folder in ("curated", "filtered")
    )
    reader = reader_for("parquet", ())
    if "filtered_parquet" in assets:
        _make(
            root,
            "filtered_parquet",
            reader,
            curated,
            ("parquet", "filtered"),
            policy,
            [AspectRatioFilter(1.0, 2.0)],
        )
    if "final_tars" in assets:
        _make(root, "final_tars", reader, filtered, ("webdataset", "webdataset"), policy)
    if "lance_table" in assets:
        _make(root, "lance_table", reader, filtered, ("lance", "lance"), policy)
    if "arrow_cache" in assets:
        _make(root, "arrow_cache", reader, filtered, ("arrow_cache", "arrow_cache"), policy)


def _make(
    root: str,
    asset: str,
    reader: InterleavedReader,
    shards: Mapping[str, str],
    target: tuple[str, str],
    policy: str,
    steps: Sequence[Step] = (),
) -> None:
    streams = [reader.open(Partition(name, (uri,))) for name, uri in shards.items()]
    writer = writer_for(target[0], f"{root}/{target[1]}", on_materialize_error=policy).prepared(
        [stream.schema for stream in streams]
    )
    reports = [writer.write_partition(stream.through(steps)) for stream in streams]
    writer.finish(reports)
    for report in reports:
        rows = account_table(asset, report.partition, Balance.of(report), report.losses)
        Ledger(root).write(ShardRecord(asset, report.partition, "", report.digest, report.uri or ""), rows)
