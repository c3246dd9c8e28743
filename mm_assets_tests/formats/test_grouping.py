"""Rows of a sample that are not consecutive: brought together within bounded memory, refused in clear words
beyond it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_assets.cli import main
from mm_assets.formats import batching
from mm_assets.formats.batching import SampleSpans, grouped
from mm_assets.formats.registry import reader_for
from mm_assets.interleaved import InterleavedBatch, InterleavedParquetReader
from mm_assets.model.errors import ShardError
from mm_assets.model.samples import group_samples
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import FORMATS, as_table, item, read, table_of, write
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.shelf import ShelfFileSystem

pytestmark = pytest.mark.usefixtures("shared_workers")

PNG = picture(0)[1]
N = pa.field("n", pa.int64())


def sample(name: str, n: int = 1, images: int = 2, nbytes: int = 0) -> list[dict[str, Any]]:
    rows = [item(name, n=n), item(name, 0, text_content=f"text of {name}", n=n)]
    return rows + [
        item(name, at, "image", binary_content=PNG + bytes(nbytes), n=n) for at in range(1, images + 1)
    ]


def table(samples: int, **options: Any) -> pa.Table:
    return table_of([row for n in range(samples) for row in sample(f"s{n}", n, **options)], [N])


def by_first_row(rows: pa.Table) -> list[str]:
    return list(dict.fromkeys(rows.column("sample_id").to_pylist()))


def shuffled(rows: pa.Table, seed: int = 0) -> pa.Table:
    order = list(range(rows.num_rows))
    random.Random(seed).shuffle(order)
    return rows.take(order)


def expected(rows: pa.Table) -> pa.Table:
    """What a shuffled table is to come back as: samples by their first rows, their rows in order."""
    names = by_first_row(rows)
    found = sorted(
        rows.to_pylist(),
        key=lambda row: (names.index(row["sample_id"]), row["position"], row["modality"] == "image"),
    )
    return pa.Table.from_pylist(found, schema=rows.schema)


@pytest.mark.parametrize("row_group", [1, 7, 1000])
@pytest.mark.parametrize("max_bytes", [1, 2000, 1 << 20, None])
@pytest.mark.parametrize("where", ["local", "remote"])
def test_a_shuffled_file_is_read_sample_by_sample(
    tmp_path: Path, row_group: int, max_bytes: int | None, where: str
) -> None:
    rows = shuffled(table(20))
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=row_group)
    place = str(tmp_path) if where == "local" else f"{ShelfFileSystem.protocol}://{tmp_path}"
    batches = list(InterleavedParquetReader(place, max_batch_bytes=max_bytes))
    same(as_table(batches), expected(rows))
    assert all(len(by_first_row(batch.data)) == batch.num_samples for batch in batches)
    if max_bytes == 1:
        assert [batch.num_samples for batch in batches] == [1] * 20


@pytest.mark.parametrize("to", FORMATS)
def test_it_is_converted_and_verified_like_the_one_in_order(
    tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table(12)
    for name, some in (("ordered", rows), ("shuffled", shuffled(rows))):
        (tmp_path / name).mkdir()
        pq.write_table(some, tmp_path / name / "x.parquet", row_group_size=5)
    assert main(["convert", str(tmp_path / "shuffled"), str(tmp_path / "out"), "--to", to]) == 0
    assert main(["verify", str(tmp_path / "ordered"), str(tmp_path / "shuffled"), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith("equal\n")
    assert main(["inspect", str(tmp_path / "shuffled")]) == 0
    assert "12 samples, 48 rows" in capsys.readouterr().out


def test_modality_by_modality(tmp_path: Path) -> None:
    """Whole row groups of one modality, as a union of tables has them: no group tells by itself that samples
    go on.
    """
    rows = table(30)
    parts = [
        rows.filter(pa.compute.equal(rows["modality"], modality))
        for modality in ("image", "metadata", "text")
    ]
    pq.write_table(pa.concat_tables(parts), tmp_path / "x.parquet", row_group_size=30)
    same(read("parquet", tmp_path, max_batch_bytes=3000), rows)


def test_a_filter_and_columns_go_along(tmp_path: Path) -> None:
    rows = shuffled(table(10))
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=4)
    filters = [("n", ">", 4), ("modality", "!=", "metadata")]
    found = read("parquet", tmp_path, read_kwargs={"filters": filters}, fields=(), max_batch_bytes=1)
    kept = rows.filter((pa.compute.field("n") > 4) & (pa.compute.field("modality") != "metadata"))
    same(found, expected(kept.drop_columns(["n"])))


def test_a_second_item_at_one_place_is_refused_as_ever(tmp_path: Path) -> None:
    rows = table_of([*sample("a"), *sample("b"), item("a", 1, "image", binary_content=PNG)])
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=2)
    with pytest.raises(
        ShardError, match=r"x\.parquet: sample 'a', position 1, modality 'image': a second item"
    ):
        read("parquet", tmp_path, max_batch_bytes=1)
    pq.write_table(table_of([*sample("a"), item("b"), item("a")]), tmp_path / "x.parquet")
    with pytest.raises(ShardError, match=r"x\.parquet: sample id 'a' occurs twice"):
        read("parquet", tmp_path, max_batch_bytes=1)


def test_beyond_the_window_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batching, "WINDOW_BYTES", 1 << 20)
    rows = table(40, nbytes=100_000)
    far = pa.concat_tables(
        [rows.slice(0, 3), rows.slice(4), rows.slice(3, 1)]
    )  # the last item of the first sample
    pq.write_table(far, tmp_path / "x.parquet", row_group_size=8, compression="none")
    with pytest.raises(ShardError) as caught:
        read("parquet", tmp_path, max_batch_bytes=100_000)
    assert str(caught.value) == (
        f"{tmp_path}/x.parquet: the rows of sample 's0' lie too far apart, from row 0 to row 159: "
        f"more than 1 MiB of rows would have to be "
        "held; sort the file by sample_id, or allow larger batches (--max-batch-bytes, max_batch_bytes=)"
    )
    for max_bytes in (16 << 20, None):
        same(read("parquet", tmp_path, max_batch_bytes=max_bytes), expected(far))
    near = pa.concat_tables([rows.slice(0, 3), rows.slice(4, 8), rows.slice(3, 1), rows.slice(12)])
    pq.write_table(near, tmp_path / "x.parquet", row_group_size=8, compression="none")
    same(read("parquet", tmp_path, max_batch_bytes=100_000), expected(near))


def test_no_more_is_held_than_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample's last row lies ten samples behind: of the file never more than those."""
    monkeypatch.setattr(batching, "WINDOW_BYTES", 4 << 20)
    rows = table(400, images=1, nbytes=50_000)
    order = sorted(range(rows.num_rows), key=lambda row: row + 30 * (row % 3 == 2))
    pq.write_table(rows.take(order), tmp_path / "x.parquet", row_group_size=30, compression="none")
    before = pa.total_allocated_bytes()
    held = []
    for batch in InterleavedParquetReader(tmp_path, max_batch_bytes=200_000):
        held.append(pa.total_allocated_bytes() - before)
        del batch
    assert max(held) < 12 << 20 < 20 << 20


def test_a_lance_table_of_others(tmp_path: Path) -> None:
    import lance

    rows = shuffled(table(20))
    lance.write_dataset(rows, tmp_path / "x.lance", max_rows_per_file=7)
    same(read("lance", tmp_path / "x.lance", max_batch_bytes=2000), expected(rows))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("is_generator", [False, True])
def test_batches_of_a_user(tmp_path: Path, kind: str, is_generator: bool) -> None:
    rows = shuffled(table(10))
    batches = [InterleavedBatch(rows, (), "p")]
    write(kind, tmp_path, iter(batches) if is_generator else batches)
    same(read(kind, tmp_path), expected(rows))
    write(kind, tmp_path / "again", InterleavedBatch(rows, (), "p"))
    same(read(kind, tmp_path / "again"), expected(rows))


def test_rows_in_order_are_left_as_they_are(tmp_path: Path) -> None:
    rows = table(10)
    assert group_samples(rows) is rows
    tables = [rows.slice(0, 17), rows.slice(17)]  # cut within a sample
    found = list(
        grouped(iter(tables), SampleSpans.of(t["sample_id"].combine_chunks() for t in tables), 1, "x")
    )
    assert [one is other for one, other in zip(found, tables, strict=True)] == [True, True]
    assert SampleSpans.of([]) is None


@settings(max_examples=60)
@given(
    ids=st.lists(st.sampled_from(["a", "b", "c", "d", None, ""]), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    limit=st.sampled_from([0, 1 << 20]),
)
def test_any_order(ids: list[str | None], cuts: list[int], limit: int) -> None:
    """Every row once, samples by their first rows, rows of a sample in their order."""
    rows = pa.table({"sample_id": pa.array(ids, pa.string()), "row": pa.array(range(len(ids)), pa.int64())})
    edges = sorted({0, *(min(cut, len(ids)) for cut in cuts), len(ids)})
    tables = [rows.slice(low, high - low) for low, high in zip(edges, edges[1:], strict=False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "WINDOW_BYTES", limit)
        try:
            found = pa.concat_tables(
                [rows.slice(0, 0), *grouped(iter(tables), SampleSpans.of(rows["sample_id"].chunks), 0, "x")]
            )
        except ShardError:
            assert limit == 0
            return
    firsts = {name: ids.index(name) for name in ids}
    order = sorted(range(len(ids)), key=lambda row: firsts[ids[row]])
    assert found["row"].to_pylist() == order


def test_reader_for_a_mixed_folder(tmp_path: Path) -> None:
    """One file in order, one not: each as it needs."""
    pq.write_table(table(3), tmp_path / "a.parquet")
    rows = shuffled(table_of([row for n in range(3) for row in sample(f"t{n}", n)], [N]))
    pq.write_table(rows, tmp_path / "b.parquet", row_group_size=2)
    found = as_table(reader_for("parquet", str(tmp_path), max_batch_bytes=1))
    same(found, pa.concat_tables([table(3), expected(rows)]))
