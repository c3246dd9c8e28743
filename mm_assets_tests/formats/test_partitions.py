"""Names and sizes of partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm_assets.formats.partitions import parse_bytes, partition_name
from mm_assets.formats.registry import detect_format, reader_for
from mm_assets_tests.formats.datasets import batch_of, item, write
from mm_assets_tests.formats.raw_tars import make_tar


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/d/a.tar", "a"),
        ("/d/sub/b.TAR.GZ", "sub/b"),
        ("/d/x.tgz", "x"),
        ("/d/a.b.parquet", "a.b"),
        ("/d/.tar", "part"),
        ("/d/sub%2Fb.parquet", "sub/b"),
        ("/d/x/y%2Ez.parquet", "x/y.z"),
        ("/d/%5Fx.parquet", "_x"),
        ("/d/sub%2Fb.tar", "sub%2Fb"),
        ("/d/%2E%2E%2Fx.parquet", "%2E%2E%2Fx"),
        ("/d/%2Fetc.parquet", "%2Fetc"),
        ("/d/%FF.parquet", "%FF"),
        ("/d/a%20é.parquet", "a%20é"),
    ],
)
def test_names(file: str, name: str) -> None:
    assert partition_name(file, "/d") == name


@pytest.mark.parametrize("name", ["sub/b", "x.y z", "_é", "%2F", "a/../b", "漢" * 60, "ü" * 9])
def test_names_do_not_grow_from_format_to_format(tmp_path: Path, name: str) -> None:
    source = [batch_of([item("a")], partition=name)]
    files = []
    for step, kind in enumerate(("parquet", "webdataset", "parquet", "webdataset")):
        report = write(kind, tmp_path / str(step), source)
        files.append(Path(report.files[0]).stem)
        source = reader_for(kind, str(tmp_path / str(step)))  # type: ignore[assignment]
    assert len(files[-1]) <= 80
    if len(name) < 20 and ".." not in name:
        assert len(set(files)) == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 << 20),
        ("1 kB", 1000),
        (5, 5),
        ("5", 5),
        ("1.5KiB", 1536),
        ("2GB", 2 * 10**9),
        ("3tib", 3 << 40),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "-5", "0", "5XB", "1e3", "5 5"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size in bytes"):
        parse_bytes(text)


def test_formats_of_patterns_and_of_what_lies_in_an_output(tmp_path: Path) -> None:
    for kind in ("parquet", "lance", "arrow_cache"):
        write(kind, tmp_path / kind, batch_of([item("a")]))
    make_tar(tmp_path / "x.tar.gz", [], mode="w:gz")
    for pattern in ("x.*", "*.gz", "{x,x}.tar.gz", "x.tar.gz"):
        assert detect_format(str(tmp_path / pattern)) == "webdataset"
    assert detect_format(str(tmp_path / "lance" / "items.lance")) == "lance"
    assert detect_format(str(tmp_path / "arrow_cache" / "part-00000")) == "arrow_cache"
    (tmp_path / "parquet" / "their_metadata.json").touch()
    assert detect_format(str(tmp_path / "parquet")) == "parquet"
    with pytest.raises(FileNotFoundError):
        detect_format(str(tmp_path / "nowhere" / "*"))


def test_folders_beside_the_data_are_no_data(tmp_path: Path) -> None:
    write("parquet", tmp_path / "data" / "sub", batch_of([item("a")]))
    for folder in ("_ledger", ".hidden", "sub/_ledger", "sub/.y"):
        write("parquet", tmp_path / "data" / folder, batch_of([item("b")]))
        make_tar(tmp_path / "data" / folder / "x.tar", [])
    (tmp_path / "data" / "sub" / "part-00000.parquet").rename(tmp_path / "data" / "sub" / "_a.parquet")
    assert detect_format(str(tmp_path / "data")) == "parquet"
    assert [p.files for p in reader_for("parquet", str(tmp_path / "data")).partitions()] == [
        (f"{tmp_path}/data/sub/_a.parquet",)
    ]
    (named,) = reader_for("parquet", str(tmp_path / "data" / "_ledger")).partitions()
    assert named.files == (f"{tmp_path}/data/_ledger/part-00000.parquet",)
