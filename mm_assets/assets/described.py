"""What the settings tell of an asset: its owners, and where its output and its ledger are."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from mm_assets.accounting.ledger import Ledger
from mm_assets.accounting.outputs import BY_ASSET, DERIVED_FOLDERS
from mm_assets.assets.overview import OVERVIEW
from mm_assets.formats.storage import join

# Chapters of the documentation, which has no address of its own.
_DOCUMENTATION = {
    "quarantine": "docs/accounting.md, docs/data_model.md",
    "final_tars": "docs/tar_layout.md, docs/training.md",
    "arrow_cache": "docs/arrow_cache.md, docs/training.md",
}


def described(asset: dg.AssetsDefinition, root: str, owners: Sequence[str]) -> dg.AssetsDefinition:
    """Return an asset with its owners and links.

    Args:
        root: storage root.
        owners: e-mail addresses and ``team:name``.
    """
    return asset.map_asset_specs(
        lambda spec: spec.merge_attributes(owners=owners, metadata=_links(spec.key.to_user_string(), root))
    )


def _links(asset: str, root: str) -> Mapping[str, Any]:
    ledger = Ledger(root)
    balances = ledger.balance_uri(asset, "any").rpartition("/")[0]
    return {
        "output": dg.MetadataValue.path(_output(asset, root)),
        "ledger": _query("entry, kind, sum(items)", balances) + " GROUP BY ALL",
        "lost_items": _query("*", ledger.items_folder(asset)),
        "overview": dg.MetadataValue.asset(OVERVIEW),
        "documentation": _DOCUMENTATION.get(asset, "docs/data_model.md, docs/accounting.md"),
    }


def _output(asset: str, root: str) -> str:
    return join(root, BY_ASSET[asset].folder if asset in BY_ASSET else DERIVED_FOLDERS[asset])


def _query(columns: str, folder: str) -> str:
    """Return SQL over the Parquet files of a folder, for DuckDB."""
    escaped = folder.replace("'", "''")
    return f"SELECT {columns} FROM '{escaped}/*.parquet'"
