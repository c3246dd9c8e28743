"""Polars over the Parquet folder: one lazy scan for the items, one read a file for the extras."""

import sys
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
from normal_form import RESERVED, Document, from_rows, report, require_same


def json_columns(parquet: Path) -> list[str]:
    schema = pq.read_schema(parquet)
    return [field.name for field in schema if (field.metadata or {}).get(b"mm_assets:encoding") == b"json"]


def main(folder: Path) -> None:
    parquets = sorted(folder.glob("*.parquet"))
    found: dict[str, Document] = {}
    for parquet in parquets:
        found |= from_rows(pl.read_parquet(parquet, glob=False).to_dicts(), json_columns(parquet))
    # Extras may differ from file to file, so the reserved columns are asked for by name.
    scans = [pl.scan_parquet(parquet, glob=False).select(RESERVED) for parquet in parquets]
    items = from_rows(pl.concat(scans).collect().to_dicts())
    for part in ("texts", "images", "errors"):
        whole, single = ({name: sample[part] for name, sample in each.items()} for each in (items, found))
        require_same(whole, single, f"{part} through one scan and file by file")
    report(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
