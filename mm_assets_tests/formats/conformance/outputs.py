"""Small datasets, and where a format puts them: all of it told by the table of formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical import CanonicalSource
from mm_assets.formats.names import format_of
from mm_assets.formats.registry import writer_for
from mm_assets.model.json_codec import json_field
from mm_assets_tests.formats.datasets import item, table_of
from mm_assets_tests.formats.images.pictures import picture

PNG = picture(0)[1]
N = pa.field("n", pa.int64())
EXTRAS = [N, json_field("j"), pa.field("when", pa.timestamp("s", "UTC"))]
ROWS = [
    item("a", n=5, j='{"k":[1,null]}', when=7, content_type="application/json", source_ref='{"path":"x"}'),
    item("a", 0, text_content="ü", content_type="text/plain"),
    item("a", 0, "image", binary_content=PNG, content_type="image/png", n=1),
    item("a", 2, "image", binary_content=b"no image", content_type="image/odd", materialize_error="broken"),
    item("b.c/d", 1, "image", materialize_error="gone", j="null"),
]
TABLE = table_of(ROWS, EXTRAS)


def rows(name: str, **values: Any) -> list[dict[str, Any]]:
    """One sound sample: metadata, a text, an image behind a gap."""
    return [
        item(name, content_type="application/json", **values),
        item(name, 0, text_content=f"text of {name}", content_type="text/plain"),
        item(name, 2, "image", binary_content=PNG, content_type="image/png"),
    ]


def output(kind: str, folder: Path | str, partition: str = "part") -> Path:
    """The file, folder or table that a partition is written to."""
    return Path(writer_for(kind, str(folder)).uri_of(partition))


def place(kind: str, folder: Path | str, partition: str = "part") -> CanonicalSource:
    """The same for canonical readers."""
    return CanonicalSource(kind, str(output(kind, folder, partition)), partition)


def rows_of(source: CanonicalSource) -> pa.Table:
    """What the canonical reader finds."""
    return pa.concat_tables(source.tables())


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files by their path."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "lock"
    }


def visible(kind: str, folder: Path) -> set[str]:
    """The files that readers see; of a table, whose data are seen once committed, all but those."""
    unseen = f"{output(kind, folder).name}/data" if format_of(kind).is_table else "\0"
    return {name for name in snapshot(folder) if not name.startswith(unseen)}


def main_file(path: Path) -> Path:
    """The largest file of an output, of a table one with its data."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return max(files, key=lambda file: (file.parent.name == "data", file.stat().st_size, file))


def cut_short(path: Path) -> None:
    """Take the last third of the largest file of an output away."""
    data = main_file(path)
    data.write_bytes(data.read_bytes()[: data.stat().st_size * 2 // 3])
