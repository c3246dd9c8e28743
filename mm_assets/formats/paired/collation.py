"""Batches of samples that have pictures of different sizes."""

from __future__ import annotations

from typing import Any

from webdataset.filters import default_collation_fn, dict2tuple, tuple2dict


def collate(samples: list[Any]) -> Any:
    """webdataset's collation of tuples or dicts, but arrays or tensors of different shapes stay a list (there
    they are an error).
    """
    rows = [tuple2dict(sample) for sample in samples]
    ragged = [key for key in rows[0] if len({getattr(row.get(key), "shape", None) for row in rows}) > 1]
    ragged = [key for key in ragged if all(key in row for row in rows)]
    batch = default_collation_fn(
        [{key: value for key, value in row.items() if key not in ragged} for row in rows]
    )
    batch |= {key: [row[key] for row in rows] for key in ragged}
    return {key: batch[key] for key in rows[0]} if isinstance(samples[0], dict) else dict2tuple(batch)
