"""DuckDB over the Parquet folder: one query for the items, one a file for the extras (their types may
differ).
"""

import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from normal_form import RESERVED, Document, from_rows, report, require_same


def json_columns(parquet: Path) -> list[str]:
    schema = pq.read_schema(parquet)
    return [field.name for field in schema if (field.metadata or {}).get(b"mm_assets:encoding") == b"json"]


def rows(query: str, parameter: str) -> list[dict[str, Any]]:
    relation = duckdb.execute(query, [parameter])
    names = [column[0] for column in relation.description]
    return [dict(zip(names, row, strict=True)) for row in relation.fetchall()]


def main(folder: Path) -> None:
    found: dict[str, Document] = {}
    for parquet in sorted(folder.glob("*.parquet")):
        found |= from_rows(rows("select * from read_parquet(?)", str(parquet)), json_columns(parquet))
    everything = rows(f"select {', '.join(RESERVED)} from read_parquet(?)", str(folder / "*.parquet"))
    items = from_rows(everything)
    for part in ("texts", "images", "errors"):
        whole, single = ({name: sample[part] for name, sample in each.items()} for each in (items, found))
        require_same(whole, single, f"{part} through *.parquet and file by file")
    report(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
