"""``mm-assets show`` with one sample of any dataset, of any format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fsspec
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile

from mm_assets_tests.cli.commands import ok
from mm_assets_tests.cli.documents import GOOD, WIDE, sample
from mm_assets_tests.cli.formats_to_show import ITEMS
from mm_assets_tests.cli.hostile_storage import noise
from mm_assets_tests.cli.storage_root import fill
from mm_assets_tests.formats.parquet_of_others import curator, curator_rows
from mm_assets_tests.formats.raw_tars import make_tar

REST = "1 further shard not looked in, as it was found before\n"


@pytest.mark.parametrize(
    ("name", "shard", "rest"),
    [
        ("raw", "a.tar", REST),
        ("raw/a.tar", "a.tar", ""),
        ("raw/*.tar", "a.tar", ""),
        ("parquet", "a.parquet, which has it from a.tar: two.json @3584+124", ""),
        ("webdataset", "a.tar", ""),
        ("lance", "items.lance, which has it from a.tar: two.json @3584+124", ""),
        ("arrow_cache", "a, which has it from a.tar: two.json @3584+124", REST),
        ("jsonl", "a.jsonl.gz, which has it from a.tar: two.json @3584+124", REST),
    ],
)
def test_a_sample_of_each_format(data: Path, name: str, shard: str, rest: str) -> None:
    folder = data / name.removesuffix("/a.tar").removesuffix("/*.tar")
    origin = f"shard a, from {folder}/{shard}"
    assert ok("show", "two", data / name) == f"sample two\n{origin}\n{ITEMS}{rest}"


def test_a_url_and_a_relative_path(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    assert ok("show", "two", "parquet") == ok("show", "two", f"file://{data}/parquet")


def test_documents_of_others(tmp_path: Path) -> None:
    texts = pa.array([["first", None], ["only"]], pa.list_(pa.string()))
    images = pa.array([[None, {"bytes": GOOD}], [None]], pa.list_(pa.struct([("bytes", pa.binary())])))
    table = pa.table({"key": ["x", "y"], "texts": texts, "images": images, "n": [1, 2]})
    pq.write_table(table, tmp_path / "d.parquet")
    flags = ("--sample-id-field", "key")
    assert ok("show", "x", tmp_path / "d.parquet", *flags).splitlines()[2:] == [
        "  n: 1",
        "[0] text",
        "    first",
        "[1] image 30x20 png 72 B",
    ]
    prefixed = ok("show", "d/x", tmp_path / "d.parquet", *flags, "--sample-id-prefix", "shard")
    assert prefixed.splitlines()[3:] == ["[0] text", "    first", "[1] image 30x20 png 72 B"]


def test_rows_of_others_that_lie_apart_in_several_row_groups(tmp_path: Path) -> None:
    """No order of rows, and no statistics are needed."""
    rows = [*curator_rows("a", "text of a", GOOD), *curator_rows("b", "text of b", WIDE)]
    curator(tmp_path / "c.parquet", rows)
    table = pq.read_table(tmp_path / "c.parquet").take([3, 1, 0, 2][: len(rows)] + list(range(4, len(rows))))
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=1, write_statistics=False)
    lines = ok("show", "a", tmp_path / "c.parquet").splitlines()
    assert [line for line in lines if line.startswith("[")] == ["[0] text", "[1] image 30x20 png 72 B"]


def test_a_lance_table_of_others(tmp_path: Path, data: Path) -> None:
    rows = lance.dataset(str(data / "lance" / "items.lance")).to_table()
    lance.write_dataset(rows, str(tmp_path / "bare.lance"))
    out = ok("show", "two", tmp_path / "bare.lance")
    assert out.splitlines()[1].startswith(f"shard (not recorded), from {tmp_path}/bare.lance")
    assert out.endswith(ITEMS)


def test_what_a_raw_shard_has_no_use_for(data: Path) -> None:
    lines = ok("show", "bad", data / "raw").splitlines()
    assert lines[2] == "metadata"
    said = " ".join(line.strip() for line in lines[3:])
    assert said.startswith(f"! quarantined: bad_json: {data}/raw/sub/b.tar: bad.json: not JSON: ")
    assert said.endswith("! it was not read")


def test_an_id_that_a_shard_has_twice(tmp_path: Path) -> None:
    second = [("second.json", {"sample_id": "twin", "texts": ["other"]})]
    make_tar(tmp_path / "raw" / "a.tar", [*sample("twin"), *second])
    fill(str(tmp_path / "storage"), str(tmp_path / "raw"))
    for arguments in (("--storage", tmp_path / "storage"), (tmp_path / "raw",)):
        out = ok("show", "twin", *arguments)
        assert out.count("text of twin") == 1 and out.count("duplicate_id") >= 1
        assert re.search(r"^metadata\n  ! quarantined.*: duplicate_id: ", out, re.M)


@pytest.mark.parametrize(
    "sample_id",
    ["it's", 'a"b', "日本 é", "a\nb\x1b[31m", "", " ", "%", "-x", "a/b/../c", "😀" * 30, "<b>&amp;"],
)
def test_odd_ids(tmp_path: Path, sample_id: str) -> None:
    members = [*sample("n", sample_id=f"{sample_id}x"), *sample("s", sample_id=sample_id)]
    make_tar(tmp_path / "raw" / "a.tar", members)
    fill(str(tmp_path / "storage"), str(tmp_path / "raw"))
    sources = ["raw", "storage/curated", "storage/webdataset", "storage/lance", "storage/arrow_cache"]
    outs = [ok("show", "--storage", tmp_path / "storage", "--", sample_id)]
    outs += [ok("show", "--", sample_id, tmp_path / source) for source in sources]
    for out in outs:
        assert "    text of s" in out.splitlines() and "text of n" not in out
        assert all(character.isprintable() for line in out.split("\n") for character in line)


def test_a_large_dataset_costs_one_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Parquet, tars with an index and Lance only what the sample needs is read."""
    large = noise(200)
    assert len(large) > 100_000
    for shard in range(4):
        members = [m for n in range(5) for m in sample(f"{shard}-{n}", large + bytes(300_000))]
        make_tar(tmp_path / "raw" / f"{shard}.tar", members)
    files = fsspec.filesystem("memory")
    read = 0
    whole = MemoryFile.read

    def counted(self: MemoryFile, *arguments: Any) -> bytes:
        nonlocal read
        found = whole(self, *arguments)
        read += len(found)
        return found

    monkeypatch.setattr(MemoryFile, "read", counted)
    for kind, most in (("parquet", 3_000_000), ("webdataset", 600_000)):
        ok("convert", tmp_path / "raw", tmp_path / kind, "--to", kind)
        root = f"memory://show-{kind}"
        files.put(f"{tmp_path}/{kind}/", f"{root}/", recursive=True)
        read = 0
        assert "[1] image 200x200 png" in ok("show", "2-3", root)
        files.rm(root, recursive=True)
        assert read < most
