"""What the reads of training are measured on: the same samples whoever reads them, and a difference is
seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks import curator, project, sample_reads
from benchmarks.measuring import measure
from benchmarks.paired_reads import Sizes, Tars, make_tars, prepare_paired, prepare_plain, prepare_raw
from benchmarks.shards import Shape, make_shards
from mm_assets_tests.clients.environment import clients_bin

FOLDERS = {
    "cache": "arrow_cache",
    "cache rows": "arrow_cache",
    "lance": "lance",
    "parquet": "parquet",
    "webdataset": "webdataset",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    tars = make_shards(root, Shape("members", shards=2, samples=9, sample_bytes=40_000, images=(2, 4)))
    project.convert("webdataset", "parquet", list(map(str, tars)), str(root / "parquet"), is_filtered=False)
    for target in ("arrow_cache", "lance", "webdataset"):
        project.convert("parquet", target, parquet_of(root), str(root / target), is_filtered=False)
    return root


def parquet_of(root: Path) -> list[str]:
    return sorted(map(str, (root / "parquet").glob("*.parquet")))


def rows_of(root: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(file, columns=sample_reads._COLUMNS) for file in parquet_of(root)])


def truth(root: Path) -> list[sample_reads.Sample]:
    samples: dict[str, list[str | bytes]] = {}
    for row in rows_of(root).to_pylist():
        items = samples.setdefault(row["sample_id"], [])
        if row["modality"] != "metadata":
            items.append(row["text_content"] if row["modality"] == "text" else row["binary_content"])
    return list(samples.items())


@pytest.mark.parametrize("reader", FOLDERS)
def test_each_format_gives_the_same_samples(reader: str, outputs: Path) -> None:
    samples = sample_reads.READERS[reader](str(outputs / FOLDERS[reader]))
    expected = truth(outputs)
    assert len(expected) == len(samples) == 9
    assert list(samples) == expected
    nbytes = sum(len(item) for _, items in expected for item in items)
    assert sample_reads.prepare(reader, str(outputs / FOLDERS[reader]))() == {"samples": 9, "nbytes": nbytes}
    if reader == "webdataset":
        with pytest.raises(TypeError, match="in order"):
            samples[0]
    else:
        order = sample_reads.shuffled(9, 1)
        assert order != sorted(order) == list(range(9))
        assert [samples[number] for number in order] == [expected[number] for number in order]


def test_batches_that_cut_samples_are_joined(outputs: Path) -> None:
    rows = rows_of(outputs)
    for size in (1, 2, 7, 1000):
        whole = sample_reads._whole_samples(rows.combine_chunks().to_batches(max_chunksize=size))
        assert [sample for table in whole for sample in sample_reads._samples(table)] == truth(outputs)


@pytest.mark.parametrize("what", ["text", "id", "order"])
def test_another_sample_has_another_digest(what: str, outputs: Path, tmp_path: Path) -> None:
    rows = rows_of(outputs).combine_chunks()
    if what == "order":
        changed = pa.concat_tables([rows.slice(0, 1), rows.slice(2, 1), rows.slice(1, 1), rows.slice(3)])
    else:
        name = {"text": "text_content", "id": "sample_id"}[what]
        at = rows.column_names.index(name)
        changed = rows.set_column(
            at, name, pc.replace_substring(rows.column(at), rows.column(at).drop_null()[0].as_py(), "other")
        )
    for name, table in (("as", rows), ("changed", changed)):
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "0.parquet")
    found = [
        sample_reads.digest_of("parquet", str(folder))()
        for folder in (outputs / "parquet", tmp_path / "as", tmp_path / "changed")
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.clients
def test_hugging_face_gives_the_same_samples(outputs: Path, tmp_path: Path) -> None:
    clients_bin("python")
    other: dict[str, Any] = {
        "python": curator.PYTHON,
        "environment": {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
    }
    folder = str(tmp_path / "datasets")
    measure("benchmarks.sample_reads:make_hugging_face", files=parquet_of(outputs), folder=folder, **other)
    for order in (None, [5, 0, 7]):
        ours = sample_reads.digest_of("parquet", str(outputs / "parquet"), order)()
        assert (
            measure(
                "benchmarks.sample_reads:digest_of", reader="datasets", folder=folder, order=order, **other
            ).result
            == ours
        )


def test_paired_tars_hold_what_the_others_hold(tmp_path: Path) -> None:
    sizes = Sizes(samples=12, images=3000, embeddings=40)
    tars, again = (make_tars(tmp_path / name, sizes) for name in ("one", "two"))
    assert contents(tars) == contents(again)  # the same bytes in each run

    expected = {"samples": 12, "payload": 12 * 3040}
    assert prepare_paired(tars.modalities)() == prepare_plain(tars.together)() == expected
    nbytes = sum(Path(file).stat().st_size for file in tars.together)
    assert prepare_raw(tars.together)() == {"nbytes": nbytes}


def contents(tars: Tars) -> list[bytes]:
    return [Path(file).read_bytes() for files in (*tars.modalities.values(), tars.together) for file in files]
