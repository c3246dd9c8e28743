"""What `mm-assets convert` says and lists of lost items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import ITEMS_SCHEMA
from mm_assets.cli import main


def convert(
    capsys: pytest.CaptureFixture[str], source: Path, target: Path, to: str, *options: str, code: int = 0
) -> tuple[list[str], str]:
    """What is printed below the first line, and on stderr."""
    assert main(["convert", str(source), str(target), "--to", to, "--workers", "1", *options]) == code
    out, err = capsys.readouterr()
    return [line.strip() for line in out.splitlines()[1:]], err


def lists(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found = {path.stem: pq.read_table(path) for path in sorted((folder / "_ledger").glob("*"))}
    assert all(table.schema.equals(ITEMS_SCHEMA) for table in found.values())
    return {name: table.to_pylist() for name, table in found.items()}
