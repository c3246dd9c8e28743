"""What is written in a format is read from it, by readers and canonical readers: types, nulls and field
metadata included.
"""

from __future__ import annotations

import tempfile

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, note, settings

from mm_assets.accounting.canonical import derive
from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.any_tables import same, tables
from mm_assets_tests.formats.conformance.outputs import place, rows_of
from mm_assets_tests.formats.datasets import FORMATS, read, write


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(table=tables())
def test_any_table(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> None:
    """Every format has the same digest."""
    batch = InterleavedBatch(table, ("somewhere",), "part")
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        digests = set()
        for kind in FORMATS:
            note(kind)
            target = f"{folder}/{kind}"
            report = write(kind, target, batch, on_materialize_error="warn", materialize=False)
            assert report.rows == table.num_rows
            if table.num_rows:
                same(read(kind, target), table)
                same(read(kind, target, max_batch_bytes=1), table)
                same(rows_of(place(kind, target)), table)
            digests.add(derive(kind, place(kind, target).uri, "part").digest)
            assert digests == {report.partitions[0].digest}
