"""Maintenance of a Lance table: compaction, indexes, old versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from mm_assets.formats.lance.indexes import cover_all_rows
from mm_assets.formats.lance.table import LanceTable


@dataclass(frozen=True)
class MaintenanceReport:
    """What maintenance has done.

    Args:
        fragments_removed: number of fragments that were merged into others.
        versions_removed: number of old versions that were removed.
        bytes_removed: bytes of data that no version needs any more.
    """

    fragments_removed: int = 0
    versions_removed: int = 0
    bytes_removed: int = 0


def maintain(
    uri: str | os.PathLike[str],
    keep: timedelta = timedelta(days=7),
    storage_options: Mapping[str, str] | None = None,
) -> MaintenanceReport:
    """Merge small fragments, bring the indexes up to date, and remove old versions.

    Partitions stay replaceable: whose rows are in a merged fragment is known by their sample ids. Tagged
    versions stay, and so does every version younger than ``keep``: a reader may be at one.

    Raises:
        OSError: also where another process has committed in between too often; the table is whole then.
    """
    table = LanceTable(uri, storage_options)
    if not table.exists():
        return MaintenanceReport()
    dataset = table.dataset()
    merged = dataset.optimize.compact_files()
    cover_all_rows(table.dataset())
    removed = table.dataset().cleanup_old_versions(older_than=keep, error_if_tagged_old_versions=False)
    return MaintenanceReport(
        max(0, merged.fragments_removed - merged.fragments_added), removed.old_versions, removed.bytes_removed
    )
