"""A search for bytes in files that shares nothing with the scan under test, and looks at each value alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq


def files_with(folder: Path, needles: Sequence[bytes]) -> list[str]:
    """The files below a folder that have any of them: in their bytes, or in what Parquet unpacks."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(needle in content for content in _contents(path) for needle in needles)
    ]


def versions_with(
    table: str, needles: Sequence[bytes], options: Mapping[str, str] | None = None
) -> list[str]:
    """The versions of a Lance table whose rows have any of them."""
    storage = None if options is None else dict(options)
    found = []
    for version in lance.dataset(table, storage_options=storage).versions():
        number = version["version"]
        rows = lance.dataset(table, version=number, storage_options=storage).to_table().to_pylist()
        if any(needle in content for content in _values(rows) for needle in needles):
            found.append(f"version {number} of the table")
    return found


def _contents(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    if path.suffix == ".parquet":
        table = pq.read_table(pa.BufferReader(data))
        yield repr(table.schema.metadata).encode()
        yield from _values(table.to_pylist())


def _values(rows: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    for row in rows:
        yield from (value if isinstance(value, bytes) else repr(value).encode() for value in row.values())
