"""Text that is not UTF-8, in every column of every source: refused in one line, and nothing of it published."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.interleaved import INTERLEAVED_SCHEMA
from mm_assets_tests.cli.commands import refused
from mm_assets_tests.formats.datasets import batch_of, item

BAD = b"\xff\xfe\xfa, which are not UTF-8"


def as_text(*values: bytes | None, view: bool = False) -> pa.Array:
    """These bytes as a column of text, unchecked."""
    stored = pa.array(values, pa.binary_view() if view else pa.binary())
    return pa.Array.from_buffers(pa.string_view() if view else pa.string(), len(stored), stored.buffers())


TEXT = as_text(b"a", BAD, b"c")
STRUCT = pa.StructArray.from_arrays([TEXT], ["x"])
LIST = pa.ListArray.from_arrays([0, 1, 2, 3], TEXT)
COLUMNS: dict[str, pa.Array] = {
    "string": TEXT,
    "large": TEXT.cast(pa.large_string()),
    "list": LIST,
    "struct": STRUCT,
    "list<struct>": pa.ListArray.from_arrays([0, 1, 2, 3], STRUCT),
    "struct<list>": pa.StructArray.from_arrays([LIST], ["x"]),
    "map": pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["k"] * 3), TEXT),
    "keys": pa.MapArray.from_arrays([0, 1, 2, 3], TEXT, pa.array(["v"] * 3)),
    "dictionary": pa.DictionaryArray.from_arrays([0, 1, 2], TEXT),
    "JSON": pa.ExtensionArray.from_storage(pa.json_(), TEXT),
    "view": as_text(b"a", BAD, b"c", view=True),
}
RESERVED = [f.name for f in INTERLEAVED_SCHEMA if f.type == pa.string() and f.name != "modality"]


def rows(column: str, values: pa.Array) -> pa.Table:
    """Three samples, of which the second has the bad text."""
    table = batch_of([item(sample, 0, text_content="t") for sample in "abc"]).data
    if column in table.column_names:
        return table.set_column(table.schema.get_field_index(column), table.schema.field(column), values)
    return table.append_column(column, values)


CASES: dict[str, pa.Table] = {
    **{name: rows(name, TEXT) for name in RESERVED},
    **{name: rows("x", values) for name, values in COLUMNS.items()},
}


def parquet(folder: Path, table: pa.Table) -> Path:
    pq.write_table(table, folder / "f.parquet")
    return folder / "f.parquet"


def lance_table(folder: Path, table: pa.Table) -> Path:
    import lance

    lance.write_dataset(table, str(folder / "f.lance"))
    return folder / "f.lance"


def arrow_cache(folder: Path, table: pa.Table) -> Path:
    """A cache, in which the shard has other bytes than were written."""

    raise NotImplementedError


def check(source: Path, folder: Path, column: str) -> None:
    out = folder / "out"
    for arguments in ([source, out, "--to", "parquet", "--workers", "1"],):
        line = refused("convert", *arguments)
        assert f"column {column!r}: text that is not UTF-8" in line and str(source) in line
    assert not [path for path in out.rglob("*") if path.is_file()]
    line = refused("verify", source, source)
    assert f"column {column!r}: text that is not UTF-8" in line and str(source) in line


@pytest.mark.parametrize("case", CASES)
def test_parquet(tmp_path: Path, case: str) -> None:
    check(parquet(tmp_path, CASES[case]), tmp_path, case if case in RESERVED else "x")
