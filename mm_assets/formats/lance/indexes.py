"""The scalar indexes that every table has."""

from __future__ import annotations

from typing import Any

import lance

_INDEXES: dict[str, Any] = {"sample_id": "BTREE", "modality": "BITMAP"}


def cover_all_rows(dataset: lance.LanceDataset) -> int:
    """Create the indexes that are missing, extend those that do not cover every fragment; returns the version.

    Makes no version when there is nothing to do, or no rows.
    """
    if not dataset.get_fragments():
        return int(dataset.version)
    # The index's details are named for its kind: "/lance.table.BTreeIndexDetails".
    present = {(tuple(i.field_names), i.type_url.rsplit(".", 1)[-1].upper()): i.name for i in dataset.describe_indices()}
    lagging = False
    for column, kind in _INDEXES.items():
        name = present.get(((column,), f"{kind}INDEXDETAILS"))
        if name is None:
            dataset.create_scalar_index(column, kind)
        else:
            lagging |= dataset.stats.index_stats(name)["num_unindexed_fragments"] > 0
    if lagging:
        dataset.optimize.optimize_indices()
    return int(dataset.version)
