"""Digests of all files that two runs over the same raw shards have to write alike."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq

from mm_assets.storage.temporary import is_temporary

# Records and proofs note when a file was written; Lance names its files at random (its rows:
# cli/test_identical_outputs.py).
ACCOUNTS = "ledger/accounts"
OUTPUTS = ("curated", "scores", "sample_scores", "filtered", "webdataset", "arrow_cache", "quarantine")
FOLDERS = (*OUTPUTS, ACCOUNTS, "ledger/raw_shards")


def digests(storage: Path) -> dict[str, str]:
    """SHA-256 of each file, of an account of its rows, by its path below the storage root.

    What killed processes have left is for the next run to remove.
    """
    return {
        str(path.relative_to(storage)): hashlib.sha256(content(path, folder)).hexdigest()
        for folder in FOLDERS
        for path in (storage / folder).rglob("*")
        if path.is_file() and not is_temporary(path.name)
    }


def content(path: Path, folder: str) -> bytes:
    """What a file holds; of an account the rows, as its record notes when the output was written."""
    return str(pq.read_table(path).to_pylist()).encode() if folder == ACCOUNTS else path.read_bytes()
