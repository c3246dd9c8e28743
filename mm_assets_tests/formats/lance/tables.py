"""Small interleaved tables, and what a Lance table holds of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.formats.lance.fragments import FragmentSet, write_fragments
from mm_assets.formats.lance.table import LanceTable
from mm_assets.model.schema import INTERLEAVED_SCHEMA


def rows(
    ids: Sequence[str],
    extra: Mapping[str, tuple[pa.Field | pa.DataType, Sequence[Any]]] | None = None,
    mark: str = "",
) -> pa.Table:
    """A metadata and an image row of each sample; ``extra`` columns (type or field, values) are set on
    metadata rows.
    """
    columns: dict[str, list[Any]] = {name: [] for name in INTERLEAVED_SCHEMA.names}
    for number, sample_id in enumerate(ids):
        for position, modality in ((-1, "metadata"), (0, "image")):
            image = modality == "image"
            cells = (
                sample_id,
                position,
                modality,
                "image/png" if image else None,
                None if image else mark,
                (f"{mark}{sample_id}".encode() if number % 3 else b"") if image else None,
                "{}",
                None,
            )
            for name, value in zip(columns, cells, strict=True):
                columns[name].append(value)
    table = pa.table(columns, schema=INTERLEAVED_SCHEMA)
    for name, (kind, values) in (extra or {}).items():
        field = kind if isinstance(kind, pa.Field) else pa.field(name, kind)
        padded = [value for pair in zip(values, [None] * len(values), strict=True) for value in pair]
        column = values if isinstance(values, pa.Array) else pa.array(padded, field.type)
        table = table.append_column(field, column)
    return table


def names(partition: str, count: int = 3) -> list[str]:
    return [f"{partition}/{number}" for number in range(count)]


def write(uri: str | Path, partition: str, table: pa.Table | None = None, **options: Any) -> FragmentSet:
    return write_fragments(uri, partition, rows(names(partition)) if table is None else table, **options)


def content(table: LanceTable) -> Counter[tuple[Any, ...]]:
    """All rows of the newest version as a multiset: a doubled row counts twice."""
    data = table.dataset().to_table(columns=["sample_id", "position", "text_content", "binary_content"])
    return Counter(zip(*(column.to_pylist() for column in data.columns), strict=True))


def expected(*parts: pa.Table) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for part in parts:
        data = part.select(["sample_id", "position", "text_content", "binary_content"])
        found.update(zip(*(column.to_pylist() for column in data.columns), strict=True))
    return found


def column(table: LanceTable, name: str, **scan: Any) -> dict[str, Any]:
    """Sample id -> value of a column on the metadata row."""
    where = " AND ".join(["position = -1", *([scan.pop("filter")] if "filter" in scan else [])])
    data = table.dataset().to_table(columns=["sample_id", name], filter=where, **scan)
    return dict(zip(data["sample_id"].to_pylist(), data[name].to_pylist(), strict=True))


def record_files(table: LanceTable) -> list[str]:
    """Names of the partition records, sorted."""
    folder = Path(table.uri) / "_mm_assets" / "partitions"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []
