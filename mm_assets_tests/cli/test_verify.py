"""``mm-assets verify``: equal datasets are equal in any format; whatever an outside tool changes is named."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from mm_assets.cli import main
from mm_assets.formats.names import SHOWN
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.json_codec import json_field
from mm_assets_tests.accounting.mutations import CHANGES
from mm_assets_tests.aws_configuration import use_no_credentials
from mm_assets_tests.formats.any_tables import tables
from mm_assets_tests.formats.conformance.outputs import output
from mm_assets_tests.formats.datasets import FORMATS, item, table_of, write
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from tools.demo import make_shards

PNG = picture(0)[1]
OTHER = PNG[:60] + b"other" + PNG[60:]
FIELDS = [
    pa.field("n", pa.int64()),
    pa.field("score", pa.float64()),
    json_field("tags"),
    pa.field("width", pa.int32()),
]
ONE = [
    item("doc.one", n=5, score=0.5, tags='{"a":[1]}', content_type="application/json"),
    item("doc.one", 0, text_content="first text", content_type="text/plain"),
    item("doc.one", 1, "image", binary_content=PNG, content_type="image/png", width=640),
    item("doc.one", 3, "image", binary_content=OTHER, content_type="image/png", width=320),
]
TWO = [
    item("dir/two", n=6, score=1.5),
    item("dir/two", 0, text_content="other text", content_type="text/plain"),
]
THREE = [
    item("three", n=7),
    item("three", 0, "image", binary_content=PNG[:-1] + b"!", content_type="image/png", width=1),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dataset of two partitions in every format."""
    folder = tmp_path_factory.mktemp("sound")
    for kind in FORMATS:
        write(
            kind,
            folder / kind,
            [
                InterleavedBatch(table_of(ONE + TWO, FIELDS), (), "p"),
                InterleavedBatch(table_of(THREE, FIELDS), (), "q"),
            ],
        )
    return folder


def verify(*sources: object) -> int:
    return main(["verify", *map(str, sources)])


def differences(capsys: pytest.CaptureFixture[str], *sources: object) -> list[str]:
    """What is said to differ; the exit code is 1."""
    assert verify(*sources) == 1
    captured = capsys.readouterr()
    assert "equal" not in captured.out
    lines = captured.err.splitlines()
    assert all(line.startswith("mm-assets: difference: ") for line in lines)
    return [line.removeprefix("mm-assets: difference: ") for line in lines]


def test_all_formats_are_equal(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [sound / kind for kind in FORMATS]
    assert verify(*sources) == 0
    captured = capsys.readouterr()
    *lines, verdict = captured.out.splitlines()
    assert (verdict, captured.err) == ("equal", "")
    for line, name, source in zip(lines, ascii_uppercase, sources, strict=False):
        assert line.startswith(f"{name}: {source}: {source.name}, 3 samples, 8 rows, 3 images, digest ")
    assert len({line.rpartition(" ")[2] for line in lines}) == 1
    assert verify(sound / "parquet" / "*.parquet", sound / "lance" / "items.lance") == 0
    assert verify(sound / "parquet" / "p.parquet", sound / "webdataset" / "{p,x}.tar") == 1


def test_no_dagster_is_loaded(sound: Path) -> None:
    code = (
        "import sys; from mm_assets.cli import main; sys.exit(main(sys.argv[1:]) or 2 * ('dagster' in "
        "sys.modules))"
    )
    arguments = ["verify", *(str(sound / kind) for kind in FORMATS)]
    assert (
        subprocess.run(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, timeout=120
        ).returncode
        == 0
    )


IMAGE = (
    "sample 'doc.one', position {}, column 'binary_content': {} bytes in A, {} bytes in B, different "
    "from byte {} on"
)
EXPECTED = {
    "byte": [IMAGE.format(3, len(OTHER), len(OTHER), 50)],
    "row": ["sample 'doc.one', position 1: the image row is missing in B"],
    "type": [
        "sample 'doc.one', position -1, column 'n': int64 5 in A, string '5' in B",
        "sample 'dir/two', position -1, column 'n': int64 6 in A, string '6' in B",
    ],
    "swap": [IMAGE.format(1, len(PNG), len(OTHER), 60), IMAGE.format(3, len(OTHER), len(PNG), 60)],
    "rename": [
        "sample 'doc.one', position -1, column 'score': double 0.5 in A, no such column in B",
        "sample 'doc.one', position -1, column 'points': no such column in A, double 0.5 in B",
        "sample 'dir/two', position -1, column 'score': double 1.5 in A, no such column in B",
        "sample 'dir/two', position -1, column 'points': no such column in A, double 1.5 in B",
    ],
    "text": [
        "sample 'dir/two', position 0, column 'text_content': string 'other text' in A, string "
        "'Other text' in B"
    ],
    "null": ["sample 'dir/two', position -1, column 'n': int64 6 in A, null in B"],
    "sample": [
        "sample 'dir/two', position -1: the metadata row occurs 1 time in A, 2 times in B",
        "sample 'dir/two', position 0: the text row occurs 1 time in A, 2 times in B",
    ],
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("change", EXPECTED)
def test_a_change_is_named(
    kind: str, change: str, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sound / kind, tmp_path / kind)
    CHANGES[kind](output(kind, tmp_path / kind, "p"), change)
    expected = set(EXPECTED[change])
    if (kind, change) == ("lance", "type"):  # a table has one type for all rows
        expected.add("sample 'three', position -1, column 'n': int64 7 in A, string '7' in B")
    if (kind, change) == ("webdataset", "rename"):  # the json still states the type of the old one
        expected = {line.replace("no such column in B", "null in B") for line in expected}
    for other in FORMATS if change == "type" else (kind,):
        assert set(differences(capsys, sound / other, tmp_path / kind)) == expected


@pytest.mark.parametrize("kind", ["parquet", "webdataset"])
@pytest.mark.parametrize("cast", [pa.int64(), pa.float32()])
def test_a_type_that_changed_in_one_shard_of_several(
    kind: str, cast: pa.DataType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both shards together would still make a column of doubles."""
    tables = {
        name: table_of([item(name, f=value)], [pa.field("f", pa.float64())])
        for name, value in (("a", 5.0), ("b", 0.5))
    }
    for folder in ("sound", "changed"):
        batches = [InterleavedBatch(table, (), name) for name, table in tables.items()]
        write(kind if folder == "sound" else "parquet", tmp_path / folder, batches)
    write("lance", tmp_path / "table", [InterleavedBatch(table, (), name) for name, table in tables.items()])
    path = tmp_path / "changed" / "a.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("f"), "f", table.column("f").cast(cast)), path)
    (line,) = differences(capsys, tmp_path / "sound", tmp_path / "changed")
    assert line.startswith("sample 'a', position -1, column 'f': double 5.0 in A, ") and f"{cast} 5" in line
    pq.write_table(pa.concat_tables(tables.values()), tmp_path / "one.parquet")
    assert len(differences(capsys, tmp_path / "changed", tmp_path / "one.parquet")) == 1
    assert (
        verify(tmp_path / "changed", tmp_path / "table")
        == verify(tmp_path / "sound", tmp_path / "table")
        == 0
    )


def test_types_of_raw_shards_are_told_from_values(tmp_path: Path) -> None:
    """What is made of them may have a column in the one type that holds all of them."""
    for name, value in (("a", 5), ("b", 0.5)):
        make_tar(
            tmp_path / "raw" / f"{name}.tar",
            [(f"{name}.json", {"texts": ["t"], "images": [None], "f": value})],
        )
    assert main(["convert", str(tmp_path / "raw"), str(tmp_path / "out"), "--to", "parquet"]) == 0
    path = tmp_path / "out" / "a.parquet"
    table = pq.read_table(path)
    assert table.schema.field("f").type == pa.int64()
    pq.write_table(
        table.set_column(table.column_names.index("f"), "f", table.column("f").cast(pa.float64())), path
    )
    assert verify(tmp_path / "raw", tmp_path / "out") == 0


def test_a_third_dataset_is_named(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sound / "parquet", tmp_path / "parquet")
    CHANGES["parquet"](tmp_path / "parquet" / "p.parquet", "text")
    sources = [sound / "webdataset", sound / "lance", tmp_path / "parquet"]
    assert differences(capsys, *sources) == [EXPECTED["text"][0].replace("in B", "in C")]
    assert len(differences(capsys, *sources[::-1])) == 2


def test_a_sample_that_a_tar_has_twice_in_a_row(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WebDataset reads no such tar."""
    with tarfile.open(sound / "webdataset" / "p.tar") as tar, tarfile.open(tmp_path / "p.tar", "w") as twice:
        for member in [found for found in tar for _ in range(2)]:
            twice.addfile(member, tar.extractfile(member))
    assert verify(sound / "webdataset" / "p.tar", tmp_path / "p.tar") == 1
    assert capsys.readouterr().err == f"mm-assets: {tmp_path}/p.tar: sample 'doc.one' occurs twice\n"


def test_many_differences_are_counted(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, n in (("a", 1), ("b", 2)):
        write(
            "parquet",
            tmp_path / name,
            InterleavedBatch(table_of([item(f"s{i}", n=n) for i in range(30)], FIELDS)),
        )
    lines = differences(capsys, tmp_path / "a", tmp_path / "b")
    assert (len(lines), lines[-1]) == (21, "30 items in all differ between A and B")


def test_raw_shards_and_what_was_made_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both raw layouts of the demo; shards whose columns differ in type, too."""
    make_shards(tmp_path / "raw", 1, 1, 3)
    for kind in FORMATS:
        assert main(["convert", str(tmp_path / "raw"), str(tmp_path / kind), "--to", kind]) == 0
    assert verify(tmp_path / "raw", tmp_path / "parquet", tmp_path / "webdataset") == 0
    assert verify(tmp_path / "raw", tmp_path / "lance") == 0
    next((tmp_path / "parquet").glob("pdf-*")).unlink()
    capsys.readouterr()
    lines = differences(capsys, tmp_path / "raw", tmp_path / "parquet")
    assert all("row is missing in B" in line for line in lines[:-1]) and len(lines) == 21


def _parquet_of_documents(path: Path) -> None:
    pq.write_table(pa.table({"texts": pa.array([], pa.list_(pa.string()))}), path)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("rows.parquet", lambda path: pq.write_table(table_of([]), path)),
        ("documents.parquet", _parquet_of_documents),
        ("members.tar", lambda path: make_tar(path, [])),
        ("lines.jsonl", lambda path: path.touch()),
    ],
)
def test_input_of_zero_rows(name: str, make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told, and what was made of it equals it, though no client reads an empty tar: none is written."""
    make(tmp_path / name)
    for kind in FORMATS:
        assert main(["convert", str(tmp_path / name), str(tmp_path / kind), "--to", kind]) == 0
        assert f"\n  no samples in 1 of 1 shard: {tmp_path / name}\n" in capsys.readouterr().out
        assert verify(tmp_path / name, tmp_path / kind) == 0
        assert capsys.readouterr().out.endswith(f" 0 rows, 0 images, digest {'0' * 32}\nequal\n")
    write("parquet", tmp_path / "more", [InterleavedBatch(table_of(TWO, FIELDS), (), "p")])
    assert len(differences(capsys, tmp_path / "more", tmp_path / "webdataset")) == len(TWO)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.mkdir(), f"no {SHOWN} here"),
        (
            lambda path: path.write_bytes(b"junk"),
            f"bad: no {SHOWN}\n",
        ),
        (
            lambda path: (path.mkdir(), (path / "x.parquet").write_bytes(b"PAR1 junk PAR1")),
            "x.parquet: pyarrow cannot read it",
        ),
        (
            lambda path: (path.mkdir(), pq.write_table(pa.table({"a": [1]}), path / "x.parquet")),
            "x.parquet: not interleaved data",
        ),
        (lambda path: (path.mkdir(), (path / "x.tar").write_bytes(b"junk" * 1000)), "x.tar: byte 0: "),
        (lambda path: (path / "x.lance").mkdir(parents=True), "x.lance: no Lance table here"),
    ],
)
def test_unreadable_input_is_one_clear_line(
    make: Any, message: str, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "bad")
    assert verify(sound / "parquet", tmp_path / "bad") == 1
    error = capsys.readouterr().err
    assert error.startswith("mm-assets: ") and message in error and error.count("\n") == 1


def test_a_bucket_without_credentials_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_no_credentials(monkeypatch, tmp_path)
    assert verify("s3://nobucket/a", tmp_path) == 1
    hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    assert capsys.readouterr().err == f"mm-assets: s3://nobucket/a: no credentials: {hint}\n"


def test_a_fault_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("mm_assets.cli.convert.run_verify", fails)
    with pytest.raises(RuntimeError, match="ours"):
        verify(tmp_path, tmp_path)


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(table=tables())
def test_any_dataset_verifies_across_the_formats(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in FORMATS:
            write(
                kind,
                f"{folder}/{kind}",
                InterleavedBatch(table, (), "part"),
                on_materialize_error="warn",
                materialize=False,
            )
        assert verify(*(f"{folder}/{kind}" for kind in FORMATS)) == 0
