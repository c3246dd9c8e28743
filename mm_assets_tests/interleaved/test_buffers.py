"""Rows taken out of a table are equal to those of `Table.take`, and their bytes are where they were."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mm_assets.model.nested_types import binary_views, compact, take_rows

VALUES = [b"a", None, b"", b"long" * 100, b"b", None]
TABLE = pa.table(
    {
        "text": ["0", "1", None, "3", "4", "5"],
        "small": pa.array(VALUES, pa.binary()),
        "large": pa.chunked_array(
            [pa.array(VALUES[:2], pa.large_binary()), pa.array(VALUES[2:], pa.large_binary())]
        ),
    }
)


@pytest.mark.parametrize("rows", [[], [0], [5], [1, 2, 3], [0, 2, 3, 5], list(range(6))])
@pytest.mark.parametrize("start", [0, 1])
def test_rows_are_those_of_take(rows: list[int], start: int) -> None:
    table = pa.concat_tables([TABLE, TABLE]).slice(start, 6)
    assert take_rows(table, rows).equals(table.take(pa.array(rows, pa.int64())))
    assert take_rows(table, rows).schema.equals(table.schema)


def test_bytes_are_not_copied() -> None:
    data = {buffer.address for chunk in TABLE["large"].chunks for buffer in chunk.buffers()[1:]}
    taken = take_rows(TABLE, [0, 3, 4])["large"]
    assert {buffer.address for chunk in taken.chunks for buffer in chunk.buffers()[1:]} <= data
    views = [view for chunk in taken.chunks for view in binary_views(chunk)]
    assert [bytes(view) for view in views if view is not None] == [b"a", b"long" * 100, b"b"]


@pytest.mark.parametrize(("rows", "most"), [([3], 1.5), ([0, 1, 2, 3, 4, 5, 6, 7], 2.1)])
def test_a_few_rows_do_not_keep_all_images_in_memory(rows: list[int], most: float) -> None:
    table = pa.table({"image": pa.array([bytes([i]) * 100_000 for i in range(10)], pa.large_binary())})
    kept = compact(take_rows(table, rows))
    assert kept.equals(table.take(pa.array(rows)))
    assert kept["image"].get_total_buffer_size() <= most * kept["image"].nbytes
