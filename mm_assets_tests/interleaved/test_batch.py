from __future__ import annotations

import pyarrow as pa
import pytest

from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.datasets import item, table_of

ROWS = [item("a"), item("a", 0), item("a", 1, "image", binary_content=b"x" * 100), item("b", 0)]


def test_counts() -> None:
    batch = InterleavedBatch(table_of(ROWS), ("f",), "p")
    assert (batch.num_rows, batch.num_samples) == (4, 2)
    assert [batch.count(m) for m in ("metadata", "text", "image", "video")] == [1, 2, 1, 0]
    assert batch.nbytes == batch.data.nbytes > 100
    assert batch.validate()


def test_record_batches_and_single_files_are_taken() -> None:
    batch = InterleavedBatch(table_of(ROWS).to_batches()[0], "one-file")
    assert isinstance(batch.data, pa.Table)
    assert list(batch.source_files) == ["one-file"]


@pytest.mark.parametrize("data", [None, {"sample_id": ["a"]}, [1], "x"])
def test_other_types_are_refused(data: object) -> None:
    with pytest.raises(TypeError, match=r"pyarrow\.Table"):
        InterleavedBatch(data)  # type: ignore[arg-type]


def test_validate_wants_rows_and_required_columns() -> None:
    assert not InterleavedBatch(table_of([])).validate()
    lacking = InterleavedBatch(table_of(ROWS).drop_columns(["position"]))
    assert lacking.missing_columns() == ["position"]
    assert not lacking.validate()
    assert InterleavedBatch(table_of([]).drop_columns(["sample_id"])).num_samples == 0


def test_with_data_keeps_the_lineage() -> None:
    batch = InterleavedBatch(table_of(ROWS), ("f",), "p", {"k": 1})
    other = batch.with_data(table_of(ROWS[:1]))
    assert (list(other.source_files), other.partition, other.metadata, other.num_rows) == (
        ["f"],
        "p",
        {"k": 1},
        1,
    )
