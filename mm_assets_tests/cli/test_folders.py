"""Folders in which not all is as a command wants it: what it passes over, or cannot read, it says, and goes
on.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mm_assets_tests.cli.commands import only_line, run, run_process
from mm_assets_tests.cli.documents import document
from mm_assets_tests.formats.datasets import read
from mm_assets_tests.formats.raw_tars import make_tar


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    make_tar(tmp_path / "raw" / "a.tar", document("d1"))
    make_tar(tmp_path / "raw" / "b.tar", document("d2"))
    return tmp_path / "raw"


def test_an_output_beside_data_of_another_format(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("convert", raw, out, "--to", "parquet").stderr == ""
    done = run("convert", raw, out, "--to", "lance")
    assert done.returncode == 0
    assert (
        done.stderr
        == f"mm-assets: warning: {out}: holds parquet, too: who reads the folder has to name the files "
        f"of one\n"
    )
    assert run("convert", raw, out, "--to", "parquet").stderr == done.stderr.replace("parquet", "lance")
    assert "holds lance and parquet" in only_line(run("inspect", out))


def test_inspect_goes_on_past_what_cannot_be_read(raw: Path) -> None:
    (raw / "a.tar").write_bytes(b"no tar" * 200)
    done = run("inspect", raw)
    assert done.returncode == 1
    assert (
        done.stdout.splitlines()[0]
        == f"{raw}: webdataset, 2 partitions, of which 1 cannot be read to the end, 1 sample, 3 rows"
    )
    assert "first sample: d2" in done.stdout
    assert only_line(done).startswith(f"{raw}/a.tar: byte 0: ")
    (raw / "b.tar").write_bytes(b"")
    assert only_line(run("inspect", raw)).startswith(f"{raw}/a.tar: byte 0: ")


def test_a_cache_without_its_metadata_is_told(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("convert", raw, out, "--to", "arrow_cache").returncode == 0
    (out / "a" / "_metadata.json").unlink()
    for source in (out, out / "*"):
        done = run("inspect", source)
        assert done.returncode == 0
        assert (
            done.stderr
            == f"mm-assets: warning: {out}/a: not read: a cache without its _metadata.json; make it again\n"
        )
    assert set(read("arrow_cache", out)["sample_id"].to_pylist()) == {"d2"}


def test_a_misspelt_field_is_told_with_the_one_that_is_meant(raw: Path, tmp_path: Path) -> None:
    done = run_process("convert", raw / "a.tar", tmp_path / "out", "--to", "parquet", "--fields", "lnag")
    assert done.returncode == 0
    assert (
        done.stderr
        == f"mm-assets: warning: {raw}/a.tar: fields not found, filled with null: lnag (is lang meant?)\n"
    )


def test_explain_of_a_sample_whose_shard_has_not_landed(tmp_path: Path) -> None:
    strange = json.dumps({"words": ["t"], "pictures": []}).encode()
    make_tar(tmp_path / "raw" / "a.tar", [("d.json", strange)])
    settings = {
        "MM_RAW_SHARDS": str(tmp_path / "raw"),
        "MM_STORAGE": str(tmp_path / "storage"),
        "MM_WORKERS": "1",
        "DAGSTER_HOME": str(tmp_path / "home"),
    }
    assert run("run", **settings).returncode == 1
    line = only_line(run("explain", "d", "--storage", tmp_path / "storage"))
    assert line.startswith(f"{tmp_path}/storage: sample 'd' is in raw shard 'a': no output of it has landed")
