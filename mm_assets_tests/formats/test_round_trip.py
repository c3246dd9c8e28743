"""What is written in a format is read from it, types, nulls and field metadata included."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import batch_of, item, read, write


def test_times_and_nulls_inside_a_struct_in_parquet(tmp_path: Path) -> None:
    """Parquet has neither seconds nor nested nulls: both are put back."""
    type_ = pa.list_(
        pa.struct([("none", pa.null()), ("when", pa.timestamp("s", "UTC")), ("day", pa.date64())])
    )
    values = [[{"none": None, "when": 5, "day": 86_400_000}], None, [], [None]]
    table = batch_of([item(name) for name in "abcd"]).data.append_column("t", pa.array(values, type_))
    write("parquet", tmp_path, InterleavedBatch(table))
    same(read("parquet", tmp_path), table)
