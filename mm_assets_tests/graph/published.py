"""What a storage has after runs: tables, sample ids, a ledger that balances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets import accounting
from mm_assets.formats.registry import reader_for
from mm_assets.storage.small_files import seal, unseal

ALL_IMAGES = {"MM_MIN_ASPECT_RATIO": "0", "MM_MAX_ASPECT_RATIO": "100"}


def table(storage: Path, folder: str) -> pa.Table:
    return pa.concat_tables(
        [pq.read_table(path) for path in sorted((storage / folder).rglob("*.parquet"))],
        promote_options="permissive",
    )


def account(storage: Path | str, asset: str, shard: str) -> Path:
    """The file with the account of a shard."""
    return Path(storage, "ledger", "accounts", asset, f"{shard}.parquet")


def lost_items(storage: Path | str, asset: str = "*", shard: str = "*") -> list[dict[str, Any]]:
    """The lost items in accounts."""
    paths = sorted(Path(storage, "ledger", "accounts").glob(f"{asset}/{shard}.parquet"))
    return [row for path in paths for row in accounting.lost_items(pq.read_table(path)).to_pylist()]


def record_in(path: Path) -> dict[str, Any]:
    """The record in an account."""
    return unseal(pq.read_metadata(path).metadata[b"mm_assets:record"])


def rewrite(path: Path, record: Mapping[str, Any], rows: pa.Table | None = None) -> None:
    """Give an account this record, sealed anew, and these rows."""
    rows = pq.read_table(path) if rows is None else rows
    pq.write_table(rows.replace_schema_metadata({"mm_assets:record": seal(record)}), path)


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
    entries = table(storage, "ledger/accounts").to_pylist()
    assert {e["asset"] for e in entries} >= {
        "curated_parquet",
        "filtered_parquet",
        "final_tars",
        "lance_table",
        "arrow_cache",
    }
    sums: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        signs = {"in": 1, "out": -1, "filtered": -1, "quarantined": -1}
        sums[entry["asset"], entry["partition"]] += (entry["items"] or 0) * signs.get(entry["outcome"], 0)
    assert set(sums.values()) == {0}
