"""What a storage has after runs: tables, sample ids, a ledger that balances."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.registry import reader_for

ALL_IMAGES = {"MM_MIN_ASPECT_RATIO": "0", "MM_MAX_ASPECT_RATIO": "100"}


def table(storage: Path, folder: str) -> pa.Table:
    return pa.concat_tables(
        [pq.read_table(path) for path in sorted((storage / folder).rglob("*.parquet"))],
        promote_options="permissive",
    )


def ids_in_outputs(storage: Path) -> dict[str, set[str]]:
    places = {
        "curated": "parquet",
        "filtered": "parquet",
        "webdataset": "webdataset",
        "lance": "lance",
        "arrow_cache": "arrow_cache",
    }
    return {
        folder: {
            i
            for batch in reader_for(kind, str(storage / folder))
            for i in batch.data["sample_id"].to_pylist()
        }
        for folder, kind in places.items()
    }


def assert_ledger_balances(storage: Path) -> None:
    entries = table(storage, "ledger/balance").to_pylist()
    assert {e["asset"] for e in entries} >= {
        "curated_parquet",
        "filtered_parquet",
        "final_tars",
        "lance_table",
        "arrow_cache",
    }
    sums: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        sums[entry["asset"], entry["partition"]] += (entry["items"] or 0) * (
            1 if entry["entry"] == "in" else -1
        )
    assert set(sums.values()) == {0}
