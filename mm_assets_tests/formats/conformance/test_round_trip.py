"""What is written in a format is read from it: types, nulls and field metadata included."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.any_tables import same, tables
from mm_assets_tests.formats.datasets import FORMATS, read, write


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
