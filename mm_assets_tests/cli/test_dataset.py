"""Datasets in Python: they read, filter and write what the command does."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from mm_assets import Dataset, InterleavedBatch, PartitionsFailed, documents, read
from mm_assets.formats.writer import PartitionsExist
from mm_assets_tests.cli.commands import ok
from mm_assets_tests.formats.raw_tars import make_tar
from tools.demo import make_shards


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset") / "raw"
    make_shards(folder, members=2, pdf=1, samples=6)
    return folder


def test_it_writes_what_the_command_writes(raw: Path, tmp_path: Path) -> None:
    dataset = read(raw).filter(min_aspect_ratio=0.8, max_aspect_ratio=1.9, keep_samples="words > 40")
    report = dataset.write(tmp_path / "here", to="webdataset", workers=2)
    flags = ["--min-aspect-ratio", "0.8", "--max-aspect-ratio", "1.9", "--keep-samples", "words > 40"]
    ok("convert", raw, tmp_path / "there", "--to", "webdataset", *flags)
    tars = sorted(path.name for path in (tmp_path / "there").glob("*.tar"))
    assert sorted(path.name for path in (tmp_path / "here").glob("*.tar")) == tars != []
    for name in tars:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert report.samples == read(tmp_path / "there").samples == dataset.samples < read(raw).samples
    assert {loss.kind for loss in report.losses if loss.is_cause} == {"aspect_ratio", "keep_samples"}
    here, there = (pq.read_table(tmp_path / side / "_ledger") for side in ("here", "there"))
    assert here.equals(there) and here.num_rows == len(report.losses)


def test_the_format_is_that_of_the_name(raw: Path, tmp_path: Path) -> None:
    read(raw / "web-00000.tar").write(tmp_path / "one.parquet")
    assert read(tmp_path / "one.parquet").samples == read(raw / "web-00000.tar").samples
    with pytest.raises(ValueError, match="name its format"):
        read(raw).write(tmp_path / "folder")
    with pytest.raises(ValueError, match="format must be one of"):
        read(raw).write(tmp_path / "folder", to="csv")
    with pytest.raises(ValueError, match="cannot be inside the input"):
        read(raw).write(raw / "out", to="parquet")


def test_one_bad_partition_fails_alone(raw: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "a.tar").write_bytes((raw / "web-00000.tar").read_bytes())
    (mixed / "b.tar").write_bytes((raw / "web-00001.tar").read_bytes()[:1500])
    with pytest.raises(PartitionsFailed, match=r"^1 of 2 partitions not written: .*b\.tar") as raised:
        read(mixed).write(tmp_path / "out", to="parquet")
    assert [part.partition for part in raised.value.report.partitions] == ["a"]
    assert (tmp_path / "out" / "a.parquet").exists()
    others = tmp_path / "others"
    others.mkdir()
    (others / "a.tar").write_bytes((raw / "web-00001.tar").read_bytes())
    read(mixed / "a.tar").write(tmp_path / "noted", to="parquet", mode="overwrite")
    with pytest.raises(PartitionsExist, match="is there already, from another source"):
        read(others).write(tmp_path / "noted", to="parquet")


def test_an_id_of_two_partitions_stays_with_the_first(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_tar(tmp_path / "raw" / f"{name}.tar", [("x.json", {"texts": [name], "images": [None]})])
    dataset = read(tmp_path / "raw")
    with pytest.raises(PartitionsFailed, match="sample id 'x' is already in"):
        dataset.write(tmp_path / "strict", to="parquet")
    report = dataset.write(tmp_path / "out", to="parquet", on_materialize_error="drop_sample", max_loss=1)
    assert [loss.kind for loss in report.losses] == ["duplicate_id"] * 2
    assert read(tmp_path / "out").to_table(["text_content"]).to_pylist() == [
        {"text_content": None},
        {"text_content": "a"},
    ]


def test_documents_are_a_dataset(tmp_path: Path) -> None:
    dataset = read(documents(((f"d{n}", [f"text {n}"], {"n": n}) for n in range(30)), blocksize=8000))
    for _ in range(2):  # they come from no file, so nothing stands against writing them again
        report = dataset.write(tmp_path / "out", to="parquet", workers=2)
        assert report.samples == 30 and len(report.partitions) > 1
    found = (
        read(tmp_path / "out")
        .filter(keep_samples="words = 2")
        .sql("select sum(n) as sum, count(distinct sample_id) as samples from items")
    )
    assert found.to_pylist() == [{"sum": sum(range(30)), "samples": 30}]


def test_tables(raw: Path) -> None:
    dataset = read(raw)
    everything = dataset.to_table()
    assert everything.num_rows == sum(batch.num_rows for batch in dataset)
    assert pc.sum(pc.binary_length(everything.column("binary_content"))).as_py() > 10_000
    columns = ["modality", "sample_id"]
    some = dataset.to_table(columns, max_bytes=1)  # without image bytes, any size
    assert some.schema.names == columns
    assert some.equals(everything.select(columns))
    filtered = dataset.filter(min_words=100_000)
    assert filtered.to_table(columns).num_rows == filtered.samples == 0
    with pytest.raises(ValueError, match="more than 1000 bytes; name columns= without binary_content"):
        dataset.to_table(max_bytes=1000)
    with pytest.raises(ValueError, match="no column 'sampel_id'; the nearest is sample_id"):
        dataset.to_table(["sampel_id"])


def test_no_image_is_read_for_a_query_that_names_none(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = read(raw)
    asked: list[list[str]] = []
    project = type(dataset.reader).project

    def noting(reader: Any, partition: Any, columns: Any, *others: Any) -> Any:
        asked.append(list(columns))
        return project(reader, partition, columns, *others)

    monkeypatch.setattr(type(dataset.reader), "project", noting)
    found = dataset.sql("select modality, count(*) as n from items group by all order by all").to_pylist()
    table = dataset.to_table(["modality"])
    counts = table.group_by("modality").aggregate([("modality", "count")]).sort_by("modality").to_pylist()
    assert found == [{"modality": row["modality"], "n": row["modality_count"]} for row in counts]
    assert asked and not any("binary_content" in columns for columns in asked)
    sizes = dataset.sql("select sum(octet_length(binary_content))::bigint as n from items").to_pylist()
    assert sizes[0]["n"] == pc.sum(pc.binary_length(dataset.to_table().column("binary_content"))).as_py()
    assert "binary_content" not in dataset.sql("select * from items limit 1").schema.names
    with pytest.raises(ValueError, match="no query that returns rows"):
        dataset.sql("")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"min_aspct_ratio": 1}, "no setting 'min_aspct_ratio'; the nearest is min_aspect_ratio"),
        ({"min_words": "many"}, "min_words must be int, not 'many'"),
        ({"min_words": True}, "min_words must be int, not True"),
        ({"preset": "mint"}, "no preset 'mint'; the nearest is mint1t"),
        ({"min_words": 5, "max_words": 1}, "bounds must be"),
        ({"keep_samples": "words >"}, "keep_samples: 'words >': "),
        ({"min_words": 1, "actions": ["words=burn"]}, "action of words is one of"),
    ],
)
def test_a_filter_that_does_not_fit_is_one_line(raw: Path, settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        read(raw).filter(**settings)


def test_a_condition_on_no_column_is_refused_before_anything_is_dropped(raw: Path) -> None:
    with pytest.raises(ValueError, match="no shard has a column 'wrds'; the nearest is words"):
        list(read(raw).filter(keep_samples="wrds > 1"))


def test_datasets_do_not_change(raw: Path) -> None:
    dataset = read(raw)
    assert dataset.filter() is dataset
    english = dataset.filter(languages="en")
    assert dataset.steps == () and len(english.steps) == 1
    assert english.filter(min_words=1).steps[0] is english.steps[0]
    with pytest.raises(AttributeError):
        dataset.steps = ()  # type: ignore[misc]


def test_what_cannot_be_read(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")
    with pytest.raises(ValueError, match="no location"):
        read([])
    with pytest.raises(TypeError, match="a reader has its options already: fields"):
        read(documents([]), fields=["url"])
    with pytest.raises(ValueError, match="no source of a plugin has this name"):
        read("plugin:absent")


HTML_OF: list[Callable[[Dataset], Any]] = [
    lambda dataset: dataset,
    lambda dataset: dataset.reader,
    lambda dataset: next(iter(dataset)),
]


@pytest.mark.parametrize("of", HTML_OF)
def test_html_has_the_first_rows_and_no_markup_of_the_data(tmp_path: Path, of: Callable[..., Any]) -> None:
    text = "<script>alert(1)</script>" + "x" * 200
    rows = [(f"{n:02}.json", {"texts": [text], "images": [None], "<b>": "</td>"}) for n in range(8)]
    make_tar(tmp_path / "a.tar", rows)
    dataset = read(tmp_path / "a.tar")
    html = of(dataset)._repr_html_()
    assert "<script" not in html and "<b>" not in html and "&lt;/td&gt;" in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;xxx" in html and "x" * 100 not in html
    assert "and 6 more rows" in html
    assert len(html) < 12_000


def test_html_of_reports_and_of_bytes(raw: Path, tmp_path: Path) -> None:
    report = read(raw).write(tmp_path / "out", to="parquet")
    html = report._repr_html_()
    assert all(f"<td>{part.partition}</td><td>{part.samples}</td>" in html for part in report.partitions)
    batch = InterleavedBatch(pa.table({"sample_id": ["a"], "binary_content": [b"\x00" * 1234]}))
    assert "<td>1234 bytes</td>" in batch._repr_html_()
    assert repr(batch) == "<InterleavedBatch: 1 row, 2 columns>"
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"no tar" * 300)
    assert "broken.tar" in read(broken)._repr_html_()


def test_repr_reads_nothing(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", [("a.json", {"texts": ["t"], "images": [None]})])
    dataset = read(str(tmp_path / "a.tar")).filter(min_words=1)
    (tmp_path / "a.tar").unlink()
    assert repr(dataset).startswith(f"<Dataset: <InterleavedWebdatasetReader of {tmp_path}/a.tar")
    assert repr(dataset).endswith(", 1 step>")


def test_importing_loads_no_library() -> None:
    code = "import sys, mm_assets; mm_assets.Dataset; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"dagster", "PIL", "lance", "duckdb", "pandas", "cv2"} & set(done.stdout.split())


def test_a_notebook_shows_the_progress(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What IPython would be told: it is not among the packages of the tests."""
    shown: list[str] = []

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Any:
        shown.append(data["text/plain"])
        return SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))

    kernel = SimpleNamespace(kernel=object())
    notebook = SimpleNamespace(get_ipython=lambda: kernel, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        report = read(raw).write(tmp_path / "out", to="parquet", workers=1)
    assert shown[0].startswith(f"[{'-' * 24}] 0/3 partitions, 0 samples")
    assert shown[-1].startswith(f"[{'#' * 24}] 3/3 partitions, {report.samples} samples")
    assert stderr.getvalue() == ""
