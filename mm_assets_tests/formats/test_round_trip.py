"""What is written in a format is read from it, types, nulls and field metadata included."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.any_tables import same, tables
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_table(kind: str, data: st.DataObject) -> None:
    table = data.draw(tables())
    with tempfile.TemporaryDirectory() as folder:
        batch = InterleavedBatch(table, ("somewhere",), "part")
        report = write(kind, folder, batch, on_materialize_error="warn", materialize=False)
        assert report.rows == table.num_rows
        if table.num_rows:
            same(read(kind, folder), table)
            same(read(kind, folder, max_batch_bytes=1), table)


def test_times_and_nulls_inside_a_struct_in_parquet(tmp_path: Path) -> None:
    """Parquet has neither seconds nor nested nulls: both are put back."""
    type_ = pa.list_(
        pa.struct([("none", pa.null()), ("when", pa.timestamp("s", "UTC")), ("day", pa.date64())])
    )
    values = [[{"none": None, "when": 5, "day": 86_400_000}], None, [], [None]]
    table = batch_of([item(name) for name in "abcd"]).data.append_column("t", pa.array(values, type_))
    write("parquet", tmp_path, InterleavedBatch(table))
    same(read("parquet", tmp_path), table)
