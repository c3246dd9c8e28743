"""Digests of all files that two runs over the same raw shards have to write alike."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mm_assets.storage.temporary import is_temporary

# Records and proofs note when a file was written; Lance names its files at random (its rows:
# cli/test_identical_outputs.py).
OUTPUTS = ("curated", "scores", "sample_scores", "filtered", "webdataset", "arrow_cache", "quarantine")
FOLDERS = (*OUTPUTS, "ledger/balance", "ledger/items", "ledger/raw_shards")


def digests(storage: Path) -> dict[str, str]:
    """SHA-256 of each file by its path below the storage root.

    What killed processes have left is for the next run to remove.
    """
    return {
        str(path.relative_to(storage)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in FOLDERS
        for path in (storage / folder).rglob("*")
        if path.is_file() and not is_temporary(path.name)
    }
