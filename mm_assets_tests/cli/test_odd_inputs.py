"""Folders in which not everything is a shard, and locations written in other ways, as a user meets them on
the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mm_assets.formats.names import format_of
from mm_assets_tests.cli.commands import ok, refused, run
from mm_assets_tests.cli.documents import document
from mm_assets_tests.formats.datasets import FORMATS, read
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.special_files import special


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    make_tar(tmp_path / "raw" / "a.tar", document("d1"))
    make_tar(tmp_path / "raw" / "z.tar", document("d2"))
    return tmp_path / "raw"


@special
@pytest.mark.parametrize("to", FORMATS)
def test_a_special_file_fails_alone(
    tmp_path: Path, raw: Path, make: Callable[[Path], None], words: str, to: str
) -> None:
    make(raw / "m.tar")
    done = run("convert", raw, tmp_path / "out", "--to", to)
    assert (done.returncode, done.stderr) == (1, f"mm-assets: {raw}/m.tar: {words}, not a regular file\n")
    assert set(read(to, tmp_path / "out")["sample_id"].to_pylist()) == {"d1", "d2"}
    for lines in (
        refused("convert", raw / "m.tar", tmp_path / "none", "--to", to),
        refused("inspect", raw / "m.tar"),
    ):
        assert lines == f"mm-assets: {raw}/m.tar: {words}, not a regular file"
    assert "not a regular file" in refused("verify", raw, tmp_path / "out")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_special_file_among_data_of_ours(tmp_path: Path, raw: Path, kind: str) -> None:
    out = tmp_path / "out"
    ok("convert", raw, out, "--to", kind)
    odd = f"m{format_of(kind).written}"
    (out / odd).parent.mkdir(exist_ok=True)
    os.mkfifo(out / odd)
    if format_of(kind).is_table:  # a table is a folder, and nothing else is looked at
        assert "d1" in ok("inspect", out)
        return
    for arguments in (("inspect", out), ("verify", out, raw)):
        assert f"{odd}: a named pipe" in refused(*arguments)
    done = run("convert", out, tmp_path / "again", "--to", "parquet")
    assert (done.returncode, done.stderr) == (
        1,
        f"mm-assets: {out}/{odd}: a named pipe, not a regular file\n",
    )
    assert set(read("parquet", tmp_path / "again")["sample_id"].to_pylist()) == {"d1", "d2"}


def test_a_folder_called_like_a_tar_fails_alone(tmp_path: Path, raw: Path) -> None:
    (raw / "m.tar").mkdir()
    done = run("convert", raw, tmp_path / "out", "--to", "parquet")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and f"{raw}/m.tar: a folder, not a file" in done.stderr
    assert set(read("parquet", tmp_path / "out")["sample_id"].to_pylist()) == {"d1", "d2"}


def test_links_are_followed_and_what_is_not_read_is_a_warning(tmp_path: Path, raw: Path) -> None:
    make_tar(tmp_path / "elsewhere" / "b.tar", document("d3"))
    (raw / "link").symlink_to(tmp_path / "elsewhere")
    (raw / "up").symlink_to(tmp_path)
    for name in ("c.tar.bz2", "d.tar.zst"):
        (raw / name).write_bytes(b"x")
    done = run("convert", raw, tmp_path / "out", "--to", "parquet")
    assert done.returncode == 0
    assert sorted(done.stderr.splitlines()) == [
        f"mm-assets: warning: {raw}/up: a link to a folder above it, not followed",
        f"mm-assets: warning: {raw}: 2 tars, the first of them {raw}/c.tar.bz2, packed in a way that "
        f"is not read: "
        "pack with gzip, or not at all",
    ]
    assert set(read("parquet", tmp_path / "out")["sample_id"].to_pylist()) == {"d1", "d2", "d3"}
    assert (tmp_path / "out" / "link%2Fb.parquet").exists()
    assert "c.tar.bz2: a tar packed in a way that is not read" in refused(
        "convert", raw / "c.tar.bz2", tmp_path / "o", "--to", "parquet"
    )


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize(
    "place",
    [
        "memory://out",
        "memory:///out/x",
        "simplecache::memory://out",
        "filecache::file:///tmp/x",
        "zip://out::file:///tmp/x.zip",
    ],
)
def test_an_output_that_would_be_lost_is_refused(raw: Path, to: str, place: str) -> None:
    line = refused("convert", raw, place, "--to", to)
    assert line.startswith(f"mm-assets: {place}: ")
    assert ("lost with it" if place.startswith("memory") else "one file system") in line


@pytest.mark.parametrize("kind", FORMATS)
def test_a_local_url_is_as_good_as_a_path(tmp_path: Path, raw: Path, kind: str) -> None:
    first, second = tmp_path / "one%20two three", tmp_path / "second"
    ok("convert", raw, second, "--to", kind)
    ok("convert", f"file://{raw}", f"file://{first}", "--to", kind)
    assert ok("inspect", f"file://{first}").splitlines()[1:] == ok("inspect", second).splitlines()[1:]
    assert ok("verify", f"file://{first}", second, f"file://{raw}").endswith("equal\n")
    again = ok("convert", f"file://{first}", f"file:{tmp_path}/third", "--to", "parquet")
    assert "2 samples, 2 images, 2 texts" in again
    assert "the output cannot be inside the input" in refused(
        "convert", f"file://{first}", first / "x", "--to", "parquet"
    )
    assert sorted(os.listdir(tmp_path)) == ["one%20two three", "raw", "second", "third"]
